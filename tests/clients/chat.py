"""`laguna-coord chat` on a terminal, against a parrot: `chat.py LAGUNA_COORD BASE_URL`. See README.md."""

import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM, BASE = sys.argv[1:]


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *arguments):
        ours, theirs = pty.openpty()
        self.file = ours
        self.seen = ""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LAGUNA_")}
        environment |= {"TERM": "xterm", "LC_ALL": "C.UTF-8"}
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [PROGRAM, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)

    def type(self, keys):
        os.write(self.file, keys.encode())

    def until(self, text):
        """Reads until `text` has come; what came before it, and it."""
        deadline = time.time() + 60
        while text not in self.seen:
            assert time.time() < deadline, f"{text!r} never came: {self.seen!r}"
            if not select.select([self.file], [], [], 1)[0]:
                continue
            try:
                self.seen += os.read(self.file, 4096).decode(errors="replace")
            except OSError:  # The other end is closed.
                raise AssertionError(f"it ended without {text!r}: {self.seen!r}") from None
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def code(self):
        return self.process.wait(60)


chat = Terminal("chat", "--url", BASE, "--thinking", "on")
chat.until("/help lists the commands")
chat.until("> ")

# Reasoning is dimmed, the answer is not; what it took comes last.
chat.type("SAY hm{/think}the answer\r")
chat.until("\x1b[2mhm\x1b[0m")
assert "\x1b[2m" not in chat.until("the answer")
chat.until("prompt tokens (3 cached)")
chat.until("> ")

# Control characters of an answer are shown, not obeyed.
chat.type("SAY {/think}a\x16\x1b[2Jb\r")
chat.until("a\ufffd[2Jb")
chat.until("> ")

# Ctrl-C stops an answer, and only that: the terminal sends it as a signal while the program does not read.
chat.type("SAY {/think}halfWAITWAITWAITWAITWAITWAITWAITWAITWAITWAITnever\r")
chat.until("never")  # As it was typed.
chat.until("half")
os.killpg(chat.process.pid, signal.SIGINT)
chat.until("(stopped)")
chat.until("> ")

chat.type("/thinking maybe\r")
chat.until("on or off")
chat.type("/thinking off\r")
chat.until("from the next message on")
chat.type("/system Be brief.\r")
chat.until("from the next message on")
with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "talk.md")
    chat.type(f"/save {file}\r")
    chat.until(f"written to {file}")
    talk = open(file).read()
    assert talk.startswith("## system\n\nBe brief.\n\n## user\n\nSAY hm"), talk
    assert "> hm\n\nthe answer" in talk and "half" in talk, talk
    chat.type(f"/save {file}\r")
    chat.until("exists")
    chat.type("/new\r")
    chat.until("forgotten")
    chat.type(f"/save {file}.json\r")
    chat.until(f"written to {file}.json")
    assert "hm" not in open(file + ".json").read()

# The last line again, by the arrow; two lines in one message.
chat.type("SAY {/think}one\\\r")
chat.until(". ")
chat.type("two\r")
chat.until("one\r\ntwo")
chat.until("> ")
chat.type("\x1b[A")
chat.until("two")
chat.type("\x03")
assert chat.code() == 0

chat = Terminal("chat", "--url", BASE)
chat.until("> ")
chat.type("\x04")
assert chat.code() == 0
print("ok")
