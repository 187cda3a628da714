"""The environment `sudoku` of pettingllms for verifiers: `vf-eval pettingllms-sudoku`."""

from pettingllms_verifiers import plugin

SudokuTaskset, SudokuEnv, AskOnce = plugin("sudoku")

__all__ = ["AskOnce", "SudokuEnv", "SudokuTaskset"]
