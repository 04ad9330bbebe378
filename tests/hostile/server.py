"""A server of weft's (`serve`, `watch`) that is asked things."""
import json
import signal
import socket
import subprocess
import sys
import time


class Server:
    def __init__(self, words, environment, log, well):
        """`well` is what it answers with 200 as long as it is well; `log` a file for what it says."""
        self.words, self.log, self.well = words, log, well
        self.said = open(log, "w+b")
        self.process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.said)
        text = b""
        while b"}" not in text:
            piece = self.process.stdout.read1(4096)
            if not piece:
                break
            text += piece
        self.port = 0
        if text:
            found = json.loads(text)
            self.port = int(found.get("port") or str(found.get("address") or found.get("url")).rstrip("/").rsplit(":", 1)[1])

    def need(self, program):
        """Ends the program where the server did not start."""
        if not self.port:
            sys.exit(f"{program}: the server did not start: {self.log.read_text()}")

    def head(self, method, path, length=None):
        body = "" if length is None else f"Content-Type: application/json\r\nContent-Length: {length}\r\n"
        return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n{body}Connection: close\r\n\r\n".encode()

    def ask(self, request, wait, leaves=False):
        """What it answers; nothing where it does not, or where the client leaves."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as s:
                s.sendall(request)
                answer = b""
                while not leaves and (piece := s.recv(65536)):
                    answer += piece
                return answer
        except OSError:
            return b""

    def is_well(self, wait):
        for _ in range(3):
            if self.ask(self.head("GET", self.well), wait).startswith(b"HTTP/1.1 200"):
                return True
            time.sleep(0.5)
        return False

    def has_ended(self):
        return self.process.poll() is not None

    def end(self, wait):
        """The exit status after SIGTERM, -SIGKILL where that did not do; and what it said."""
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(wait)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.process.stdout.close()
        self.said.close()
        return status, self.log.read_bytes()
