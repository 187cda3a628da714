"""Games of other libraries as environments: `textarena:TicTacToe-v0`, `pettingzoo:chess_v6`."""
