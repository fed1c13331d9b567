"""An editor, by the published client of the Agent Client Protocol.

Runs the agent it is given, has one prompt worked on, answers what it is asked,
switches the mode, cancels a second prompt, and prints what it saw.
"""

import asyncio
import sys

import acp
from acp.schema import AllowedOutcome, RequestPermissionResponse


class Editor:
    def __init__(self):
        self.seen = []
        self.working = asyncio.Event()

    async def session_update(self, session_id, update, **_):
        kind = update.session_update
        if kind == "agent_message_chunk" and "takes long" in update.content.text:
            self.working.set()
        if kind not in self.seen:
            self.seen.append(kind)

    async def request_permission(self, options, session_id, tool_call, **_):
        self.seen.append("asked: " + tool_call.title)
        kinds = [option.kind for option in options]
        assert kinds == ["allow_once", "reject_once"], kinds
        chosen = AllowedOutcome(outcome="selected", option_id=options[0].option_id)
        return RequestPermissionResponse(outcome=chosen)

    def on_connect(self, _):
        pass


async def main(program, project, *words):
    editor = Editor()
    async with acp.spawn_agent_process(editor, program, *words, cwd=project) as (agent, process):
        begun = await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
        assert begun.protocol_version == acp.PROTOCOL_VERSION, begun
        assert begun.agent_info.name == "fluffy", begun
        session = await agent.new_session(cwd=project, mcp_servers=[])
        assert session.modes.current_mode_id == "strict", session
        prompt = [acp.text_block("add error handling")]
        ended = await agent.prompt(session_id=session.session_id, prompt=prompt)
        print("first:", ended.stop_reason)
        await agent.set_session_mode(session_id=session.session_id, mode_id="explore")
        second = asyncio.create_task(
            agent.prompt(session_id=session.session_id, prompt=[acp.text_block("and more")])
        )
        await asyncio.wait_for(editor.working.wait(), 20)
        await agent.cancel(session_id=session.session_id)
        print("second:", (await second).stop_reason)
        for kind in editor.seen:
            print(kind)
    assert process.returncode == 0, process.returncode


asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 60))
