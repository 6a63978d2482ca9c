#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# MCP servers of others, boxed, with the official MCP clients (tests/interop/mcp), and such as npx and uvx download when
# they start (tests/integration/test_mcp_download.py). Part of tools/interop.sh.

mcp=$(tools/mcp-interop.sh)
drive mcp "${mcp:+$mcp/python/.venv/bin/python}" tests/interop/mcp tests/integration/test_mcp_download.py \
    --confcutdir=tests/interop/mcp
