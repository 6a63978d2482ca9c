#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The files of deploy/langbot, tried with LangBot itself from PyPI: tests/interop_deploy. Part of tools/interop.sh.

drive deploy "$(tools/langbot.sh application 4.11.2)" tests/interop_deploy
