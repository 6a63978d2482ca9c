# SPDX-License-Identifier: Apache-2.0
"""Since 4.11 LangBot's agents are plugins. This one does what they all do: box, model, tools, model, answer."""

import json

from langbot_plugin.api.definition.components.runner.runner import Runner
from langbot_plugin.api.entities.builtin.provider.message import Message
from langbot_plugin.api.entities.builtin.resource.tool import LLMTool
from langbot_plugin.api.entities.builtin.runner import RunnerResult


async def unused(**_):
    raise NotImplementedError


class Default(Runner):
    async def run(self, ctx):
        api = self.get_run_api(ctx)
        box = await api.acquire_box("chat")
        await api.bind_box(box.id)
        detail = await api.get_tool_detail("exec")
        tool = LLMTool(name="exec", human_desc="exec", description=detail.get("description") or "exec",
                       parameters=detail.get("parameters") or {"type": "object"}, func=unused)
        model = api.get_allowed_models()[0].model_id
        messages = [Message(role="user", content=ctx.input.to_text())]
        answer = await api.invoke_llm(model, messages, funcs=[tool])
        messages.append(answer)
        for call in answer.tool_calls or []:
            result = await api.call_tool(call.function.name, json.loads(call.function.arguments))
            messages.append(Message(role="tool", tool_call_id=call.id, content=json.dumps(result)))
        if len(messages) > 2:
            answer = await api.invoke_llm(model, messages)
        yield RunnerResult.run_completed(run_id=ctx.run_id, message=Message(role="assistant", content=answer.content),
                                         finish_reason="stop")
