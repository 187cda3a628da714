"""A round robin of two AutoGen agents, one with a tool."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = {
    "family": "unknown",
    "function_calling": True,
    "json_output": False,
    "structured_output": False,
    "vision": False,
}


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def solve(task, base_url, api_key):
    def model(role):
        return OpenAIChatCompletionClient(
            model=role, base_url=base_url, api_key=api_key, timeout=3600, model_info=INFO
        )

    solver = AssistantAgent("solver", model_client=model("solver"), tools=[add])
    checker = AssistantAgent("checker", model_client=model("checker"))
    team = RoundRobinGroupChat([solver, checker], termination_condition=MaxMessageTermination(3))
    result = await team.run(task=task["question"])
    return float(result.messages[-1].content.strip() == str(task["answer"]))
