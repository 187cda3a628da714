"use strict";
// The board of a prompt, drawn, with the way of the reply's answer on it. Full prompts show a board
// in characters, compact ones list its cells; a prompt of another kind has no board.

const MOVES = { U: [-1, 0], D: [1, 0], L: [0, -1], R: [0, 1] };
const BOXES = { 4: [2, 2], 6: [2, 3], 9: [3, 3], 16: [4, 4] };
const SIGNS = { "#": "wall", " ": "", "-": "", "_": "", ".": "goal", $: "box", "*": "box goal", "@": "player", "+": "player goal" };
const LETTERS = { "#": "wall", _: "", O: "goal", X: "box", "√": "box goal", P: "player", S: "player goal" };
const LARGEST_BOARD = 40;

function cellOf(name) {
  const found = /^([a-z]{1,2})(\d{1,2})$/.exec(name);
  if (!found) return null;
  let row = 0;
  for (const letter of found[1]) row = 26 * row + letter.charCodeAt(0) - 96;
  return [row - 1, Number(found[2]) - 1];
}

function emptyBoard(kind, rows, columns) {
  if (rows > LARGEST_BOARD || columns > LARGEST_BOARD || !rows || !columns) return null;
  const cells = Array.from({ length: rows }, () => Array(columns).fill(""));
  return { kind, rows, columns, cells };
}

function marked(board, names, mark) {
  for (const name of names) {
    const cell = cellOf(name);
    if (!cell) break; // the list of cells ends at the first other word
    const [row, column] = cell;
    if (!board.cells[row] || board.cells[row][column] === undefined) return null;
    board.cells[row][column] = `${board.cells[row][column]} ${mark}`.trim();
  }
  return board;
}

function compactBoard(text) {
  const sokoban = /\b(\d+)x(\d+) player (\w+) boxes(.*?) goals(.*?) walls(.*)/.exec(text);
  if (sokoban) {
    const [rows, columns] = [Number(sokoban[1]), Number(sokoban[2])];
    const board = emptyBoard("sokoban", rows, columns);
    if (!board) return null;
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const edge = !row || !column || row === rows - 1 || column === columns - 1;
        if (edge) board.cells[row][column] = "wall";
      }
    }
    const words = (part) => part.trim().split(" ").filter(Boolean);
    return (
      marked(board, [sokoban[3]], "player") &&
      marked(board, words(sokoban[4]), "box") &&
      marked(board, words(sokoban[5]), "goal") &&
      marked(board, words(sokoban[6]), "wall")
    );
  }
  const plan = /\b(\d+)x(\d+) at (\w+) goal (\w+) walls(.*)/.exec(text);
  if (plan) {
    const board = emptyBoard("plan", Number(plan[1]), Number(plan[2]));
    const walls = plan[5].trim().split(" ").filter(Boolean);
    return board && marked(board, [plan[3]], "player") && marked(board, [plan[4]], "goal") && marked(board, walls, "wall");
  }
  const sudoku = /\b(\d+)x\1((?: [a-z]{1,2}\d{1,2}=\d{1,2})+)(?: filled((?: [a-z]{1,2}\d{1,2}=\d{1,2})+))?/.exec(text);
  if (sudoku) {
    const board = emptyBoard("sudoku", Number(sudoku[1]), Number(sudoku[1]));
    for (const [list, mark] of [[sudoku[2], "clue"], [sudoku[3] || "", "own"]]) {
      for (const entry of board ? list.trim().split(" ").filter(Boolean) : []) {
        const [name, value] = entry.split("=");
        const [row, column] = cellOf(name);
        if (!board.cells[row] || board.cells[row][column] === undefined) return null;
        board.cells[row][column] = `${mark} ${value}`;
      }
    }
    return board;
  }
  return null;
}

function fullBoard(text) {
  const found = /The board now:\n([^]*?)(?:\n\n|$)/.exec(text);
  const lines = found ? found[1].split("\n").filter((line) => line.trim()) : [];
  if (!lines.length) return null;
  if (lines.every((line) => /^[\d. |+-]+$/.test(line)) && lines.some((line) => line.includes("|"))) {
    const rows = lines.filter((line) => !line.includes("-"));
    const values = rows.map((line) => line.split(/[ |]+/).filter(Boolean));
    const board = emptyBoard("sudoku", values.length, values.length);
    if (!board || values.some((row) => row.length !== rows.length)) return null;
    board.cells = values.map((row) => row.map((value) => (value === "." ? "" : `clue ${value}`)));
    return board;
  }
  const columns = Math.max(...lines.map((line) => line.length));
  const plan = lines.some((line) => line.includes("G"));
  const kinds = plan ? [{ ...SIGNS, ".": "", G: "goal" }] : [SIGNS, LETTERS];
  const signs = kinds.find((each) => lines.every((line) => [...line].every((sign) => sign in each)));
  const board = emptyBoard(plan ? "plan" : "sokoban", lines.length, columns);
  if (!board || !signs) return null;
  board.cells = lines.map((line) => Array.from({ length: columns }, (_, column) => signs[line[column] || " "]));
  return board;
}

function boardOf(prompt) {
  return fullBoard(prompt) || compactBoard(prompt);
}

// The cells that the player passes with the last list of moves in a reply, up to a refused one.
function wayOf(board, reply) {
  // Moves alone, or each with the cell that it leads to.
  const lists = [...reply.slice(-4000).matchAll(/\[([UDLRa-z\d, ]*)\]/g)];
  if (board.kind === "sudoku" || !lists.length) return [];
  const has = (row, column, mark) => (board.cells[row]?.[column] ?? "wall").split(" ").includes(mark);
  const boxes = new Set();
  let at = null;
  board.cells.forEach((cells, row) =>
    cells.forEach((_, column) => {
      if (has(row, column, "box")) boxes.add(`${row},${column}`);
      if (has(row, column, "player")) at = [row, column];
    }),
  );
  if (!at) return [];
  const way = [at];
  for (const move of lists.at(-1)[1].match(/\b[UDLR]\b/g) || []) {
    const [down, right] = MOVES[move];
    const [row, column] = [at[0] + down, at[1] + right];
    if (has(row, column, "wall")) break;
    if (boxes.has(`${row},${column}`)) {
      const pushed = `${row + down},${column + right}`;
      if (boxes.has(pushed) || has(row + down, column + right, "wall")) break;
      boxes.delete(`${row},${column}`);
      boxes.add(pushed);
    }
    way.push((at = [row, column]));
  }
  return way;
}

// What the last list of fills in a reply writes into blank cells, as a3=2 or as [row, column, number].
function filled(board, reply) {
  const tail = reply.slice(-4000);
  const fills = [...tail.matchAll(/\b([a-z]{1,2}\d{1,2})=(\d{1,2})\b/g)].map(([, name, value]) => [cellOf(name), value]);
  const triples = [...tail.matchAll(/\[(\d{1,2}), *(\d{1,2}), *(\d{1,2})\]/g)].map(([, row, column, value]) => [[row - 1, column - 1], value]);
  const cells = board.cells.map((row) => [...row]);
  for (const [[row, column], value] of [...fills, ...triples]) {
    if (cells[row] && cells[row][column] === "") cells[row][column] = `fill ${value}`;
  }
  return { ...board, cells };
}

function Board({ prompt, reply }) {
  const dealt = useMemo(() => boardOf(prompt), [prompt]);
  if (!dealt) return null;
  const board = dealt.kind === "sudoku" ? filled(dealt, reply) : dealt;
  const way = wayOf(board, reply);
  const drawn = board.cells.flatMap((cells, row) => cells.map((cell, column) => Cell({ cell, row, column })));
  const [high, wide] = BOXES[board.rows] || [0, 0];
  const lines = [];
  for (let at = high; board.kind === "sudoku" && high && at < board.rows; at += high) {
    lines.push(html`<line class="box-line" x1="0" x2=${board.columns} y1=${at} y2=${at} />`);
  }
  for (let at = wide; board.kind === "sudoku" && wide && at < board.columns; at += wide) {
    lines.push(html`<line class="box-line" y1="0" y2=${board.rows} x1=${at} x2=${at} />`);
  }
  const points = way.map(([row, column]) => `${column + 0.5},${row + 0.5}`).join(" ");
  const [lastRow, lastColumn] = way.at(-1) || [];
  return html`<figure class="board">
    <svg viewBox="-0.05 -0.05 ${board.columns + 0.1} ${board.rows + 0.1}" role="img"
      aria-label="The board of this prompt, ${board.rows} by ${board.columns}">
      ${drawn}${lines}
      ${way.length > 1 && html`<polyline class="way" points=${points} />
        <circle class="way-end" cx=${lastColumn + 0.5} cy=${lastRow + 0.5} r="0.14" />`}
    </svg>
    <figcaption>The board of the prompt${way.length > 1 ? ", and the way of this reply's moves" : ""}${board.kind === "sudoku" ? ", and in color what this reply writes" : ""}.</figcaption>
  </figure>`;
}

function Cell({ cell, row, column }) {
  const marks = cell.split(" ");
  const has = (mark) => marks.includes(mark);
  const [x, y] = [column + 0.5, row + 0.5];
  return html`<g>
    <rect class=${has("wall") ? "wall" : "floor"} x=${column} y=${row} width="1" height="1" />
    ${has("goal") && html`<circle class="goal" cx=${x} cy=${y} r="0.3" />`}
    ${has("box") && html`<rect class=${has("goal") ? "box home" : "box"} x=${column + 0.2} y=${row + 0.2} width="0.6" height="0.6" rx="0.08" />`}
    ${has("player") && html`<circle class="player" cx=${x} cy=${y} r="0.24" />`}
    ${["clue", "own", "fill"].includes(marks[0]) && html`<text class=${marks[0]} x=${x} y=${y}>${marks[1]}</text>`}
  </g>`;
}
