// The playhead's keys, on the whole page. Fields, lists and buttons keep the keys that are theirs.

const KEYS = new Map([
  [" ", "toggle"], ["ArrowLeft", "back"], ["ArrowRight", "forward"], ["[", "slower"], ["]", "faster"], [",", "previous"], [".", "next"],
  ["Home", "start"], ["End", "end"], ["l", "live"], ["L", "live"], ["g", "field"], ["?", "help"],
]);

/** What a key is for: [keys, words]; the help shows them. */
export const HELP = [
  [["Space"], "play or pause"], [["←", "→"], "one second, with Shift ten"], [[",", "."], "previous, next event of the chosen kind"],
  [["[", "]"], "slower, faster"], [["Home", "End"], "start, end of the run"], [["G"], "type a time"], [["L"], "go live, when the run is being written"], [["?"], "this list"],
];

const FIELDS = "input, textarea, select, [contenteditable], dialog";
const LISTS = '[role="listbox"], tr[tabindex]';
const PRESSED = 'button, a[href], summary, [role="listbox"]';

/** Call `act(name, event)` for a key of ours; `only`: for the key of that name alone. */
export function playKeys(act, only = null) {
  document.addEventListener("keydown", (event) => {
    const name = KEYS.get(event.key), target = event.target;
    if (!name || (only && name !== only) || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !(target instanceof Element)) return;
    if (target.closest(FIELDS)) return;
    if (name === "toggle" && target.closest(PRESSED)) return;
    if (["back", "forward", "start", "end"].includes(name) && target.closest(LISTS)) return;
    event.preventDefault();
    act(name, event);
  });
}
