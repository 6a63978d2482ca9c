#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Our own MCP server with the official clients and tools (tests/interop/mcp_serve). Part of tools/interop.sh.

mcp=$(tools/mcp-interop.sh)
drive "mcp serve" "${mcp:+$mcp/python/.venv/bin/python}" tests/interop/mcp_serve --confcutdir=tests/interop/mcp_serve
