# SPDX-License-Identifier: Apache-2.0
from langbot_plugin.api.definition.plugin import BasePlugin


class Agent(BasePlugin):
    async def initialize(self):
        pass
