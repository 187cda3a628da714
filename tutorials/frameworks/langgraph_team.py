"""A LangGraph graph with a tool node; `checker` reads what `solver` wrote."""

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def solve(task, base_url, api_key):
    def model(role):
        return ChatOpenAI(model=role, base_url=base_url, api_key=api_key, timeout=3600)

    solver, checker = model("solver").bind_tools([add]), model("checker")

    def check(state):
        question = f"{task['question']} Is it {state['messages'][-1].text}?"
        return {"messages": [checker.invoke([HumanMessage(question)])]}

    graph = StateGraph(MessagesState)
    graph.add_node("solver", lambda state: {"messages": [solver.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([add]))
    graph.add_node("checker", check)
    graph.add_edge(START, "solver")
    graph.add_conditional_edges("solver", tools_condition, {"tools": "tools", END: "checker"})
    graph.add_edge("tools", "solver")
    graph.add_edge("checker", END)
    end = graph.compile().invoke({"messages": [HumanMessage(task["question"])]})
    return float(end["messages"][-1].text.strip() == str(task["answer"]))
