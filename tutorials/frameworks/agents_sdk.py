"""A team of the OpenAI Agents SDK: `triage` hands over to `solver`, which calls a tool."""

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def solve(task, base_url, api_key):
    client = AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=3600)

    def model(role):
        return OpenAIChatCompletionsModel(model=role, openai_client=client)

    solver = Agent(name="solver", instructions="Add.", model=model("solver"), tools=[add])
    triage = Agent(
        name="triage", instructions="Hand over.", model=model("triage"), handoffs=[solver]
    )
    result = await Runner.run(triage, task["question"], run_config=RunConfig(tracing_disabled=True))
    return float(result.final_output.strip() == str(task["answer"]))
