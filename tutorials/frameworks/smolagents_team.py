"""A team of smolagents: `boss` calls `solver` like a tool."""

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def solve(task, base_url, api_key):
    def model(role):
        return OpenAIModel(model_id=role, api_base=base_url, api_key=api_key)

    def agent(role, tools, **more):
        agent = ToolCallingAgent(
            tools=tools, model=model(role), max_steps=3, verbosity_level=-1, **more
        )
        agent.prompt_templates["system_prompt"] = "Call tools. End with final_answer."
        return agent

    solver = agent("solver", [add], name="solver", description="Adds.")
    boss = agent("boss", [], managed_agents=[solver])
    return float(str(boss.run(task["question"])) == str(task["answer"]))
