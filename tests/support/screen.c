/* A child under a pipe or a pseudo-terminal, and a terminal that knows only what weft uses: return,
 * line feed, erase to the end of the line, colours. */
#include "screen.h"

#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* gcc's, in a build that counts which lines are run: _exit would lose the child's counts. */
void __gcov_dump(void) __attribute__((weak));

static int open_terminal(int width, int *child_end) {
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) return -1;
    *child_end = open(ptsname(master), O_RDWR | O_NOCTTY);
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)width};
    if (*child_end < 0 || ioctl(*child_end, TIOCSWINSZ, &size) != 0) return -1;
    return master;
}

static void run_child(int output, const char *const *environment, void (*body)(void)) {
    static const char *const known[] = {"NO_COLOR", "WEFT_LOG", "WEFT_LOG_TIME"};
    dup2(output, STDERR_FILENO);
    setenv("TERM", "xterm", 1);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        unsetenv(known[i]);
    for (; environment && *environment; environment++) {
        if (strchr(*environment, '='))
            putenv(strdup(*environment));
        else
            unsetenv(*environment);
    }
    body();
    if (__gcov_dump) __gcov_dump();
    _exit(0);
}

static void read_output(screen *s, int fd) {
    size_t room = 0;
    for (;;) {
        if (s->bytes + 4096 > room) {
            room = 2 * room + 8192;
            s->raw = realloc(s->raw, room);
        }
        ssize_t n = read(fd, s->raw + s->bytes, 4096);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break; /* a terminal whose other end is closed gives an error */
        s->bytes += (size_t)n;
    }
    s->raw[s->bytes] = '\0';
}

/* Columns count characters of UTF-8; bytes that continue one go with it. */
static void show_bytes(screen *s, int width) {
    s->line = calloc(SCREEN_LINES, sizeof *s->line);
    s->lines = 1;
    int at = 0, column = 0;
    for (size_t i = 0; i < s->bytes && s->lines < SCREEN_LINES; i++) {
        unsigned char c = (unsigned char)s->raw[i];
        char *line = s->line[s->lines - 1];
        if (c == '\r') {
            at = column = 0;
        } else if (c == '\n') {
            s->lines++;
            at = column = 0;
        } else if (c == 033) {
            size_t end = i + 2;
            while (end < s->bytes &&
                   ((s->raw[end] >= '0' && s->raw[end] <= '9') || s->raw[end] == ';'))
                end++;
            if (s->raw[end] == 'K') {
                memset(line + at, 0, (size_t)(SCREEN_WIDTH - at));
                s->draws++;
            }
            i = end;
        } else if (at < SCREEN_WIDTH - 1) {
            line[at++] = (char)c;
            column += (c & 0xc0) != 0x80;
            s->overflow |= width > 0 && column > width;
        }
    }
    if (!s->line[s->lines - 1][0]) s->lines--;
}

screen screen_run(int width, const char *const *environment, void (*body)(void)) {
    screen s = {.status = -1};
    int ends[2], reader, writer = -1;
    if (width > 0) {
        reader = open_terminal(width, &writer);
        if (reader < 0) { /* a bare root without /dev/pts, say */
            printf("this system gives no terminal: %s\n", strerror(errno));
            skip();
        }
    } else {
        if (pipe(ends) != 0) return s;
        reader = ends[0];
        writer = ends[1];
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        close(reader);
        run_child(writer, environment, body);
    }
    close(writer);
    if (child > 0) {
        read_output(&s, reader);
        waitpid(child, &s.status, 0);
        show_bytes(&s, width);
    }
    close(reader);
    return s;
}

void screen_free(screen *s) {
    free(s->raw);
    free(s->line);
    *s = (screen){0};
}

int screen_count(const screen *s, const char *text) {
    int n = 0;
    for (const char *at = s->raw; at && (at = strstr(at, text)); at += strlen(text))
        n++;
    return n;
}
