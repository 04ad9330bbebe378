"""scripts/setup on a terminal: ask_setup.py ANSWER COMMAND... runs the command on a terminal of its own, types ANSWER
at the question (an empty line for "enter", the end of input for "end"), prints all that was said and ends with the
command's status. A question that does not come is no error."""
import os
import pty
import sys

answer, command = sys.argv[1], sys.argv[2:]
child, terminal = pty.fork()
if child == 0:
    os.execvp(command[0], command)
said = b""
asked = False
while True:
    try:
        piece = os.read(terminal, 4096)
    except OSError:  # the other side is closed
        break
    if not piece:
        break
    said += piece
    if not asked and b"? [" in said:
        asked = True
        os.write(terminal, {"enter": b"\n", "end": b"\4"}.get(answer, answer.encode() + b"\n"))
print(said.decode().replace("\r\n", "\n"), end="")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
