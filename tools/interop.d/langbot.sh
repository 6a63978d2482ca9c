#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The LangBot application itself, from PyPI, in front of its own runtime on Docker and of boxd (tests/interop_langbot).
# In a network namespace of its own: LangBot calls home when it starts, and a test calls nobody. Part of
# tools/interop.sh.

langbot_python=/usr/bin/python3
for release in ${LANGBOT_RELEASES:-4.11.2 4.10.11}; do
    tools/langbot.sh application "$release" >/dev/null || langbot_python=
done
drive langbot "${langbot_python:+tests/interop_langbot/alone}" tests/interop_langbot -o faulthandler_timeout=1200
