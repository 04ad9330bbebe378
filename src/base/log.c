/* The log and the status line share standard error, so they share a lock, and each change of the
 * screen is one write: the status line is erased, the record written, the status line drawn again,
 * all in one buffer. */
#include "base/log.h"

#include "base/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <time.h>

enum { RECORD_MAX = 4000, STATUS_MAX = 1000, PREFIX_MAX = 64 };

static const struct {
    const char *name, *colour;
} levels[] = {
    [WEFT_LOG_DEBUG] = {"debug", "\033[2m"},
    [WEFT_LOG_INFO] = {"info", ""},
    [WEFT_LOG_WARN] = {"warn", "\033[33m"},
    [WEFT_LOG_ERROR] = {"error", "\033[31m"},
};

static const char erase_line[] = "\r\033[K";

/* Read from the environment once, before the first use. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int least = WEFT_LOG_INFO;
static bool terminal, colours, times;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char status[STATUS_MAX + 1]; /* under the lock; empty: none is drawn */
static int copy = -1;               /* under the lock */

static void read_environment(void) {
    const char *term = getenv("TERM"), *level = getenv("WEFT_LOG"), *time = getenv("WEFT_LOG_TIME"),
               *plain = getenv("NO_COLOR");
    terminal = isatty(STDERR_FILENO) && term && *term && strcmp(term, "dumb") != 0;
    colours = terminal && !(plain && *plain);
    times = time && *time && strcmp(time, "0") != 0;
    if (!level || !*level) return;
    for (int i = 0; i < WEFT_COUNT(levels); i++) {
        if (strcmp(level, levels[i].name) == 0) {
            atomic_store(&least, i);
            return;
        }
    }
    dprintf(STDERR_FILENO,
            "warn  WEFT_LOG=%.40s is none of debug, info, warn, error; info is used\n", level);
}

bool weft_log_enabled(weft_log_level level) {
    pthread_once(&once, read_environment);
    return (int)level >= atomic_load(&least);
}

void weft_log_set_level(weft_log_level level) {
    pthread_once(&once, read_environment);
    atomic_store(&least, (int)level);
}

/* A file that is gone or full is nothing a log could report. */
static void write_to(int file, const char *text) {
    while (*text) {
        ssize_t n = write(file, text, strlen(text));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        text += n;
    }
}

/* The status line, the inside of its bar coloured. */
static void draw_status(char out[STATUS_MAX + PREFIX_MAX]) {
    const char *open = strchr(status, '['), *close = open ? strchr(open, ']') : NULL;
    if (colours && close)
        snprintf(out, STATUS_MAX + PREFIX_MAX, "%.*s\033[36m%.*s\033[0m%s",
                 (int)(open + 1 - status), status, (int)(close - open - 1), open + 1, close);
    else
        snprintf(out, STATUS_MAX + PREFIX_MAX, "%s", status);
}

void weft_log(weft_log_level level, const char *format, ...) {
    if (!weft_log_enabled(level)) return;
    int error = errno;
    char text[RECORD_MAX + 1], shown[RECORD_MAX + 1],
        buffer[RECORD_MAX + STATUS_MAX + 4 * PREFIX_MAX];
    char when[PREFIX_MAX], line[STATUS_MAX + PREFIX_MAX];
    const char *name = levels[level].name;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length > RECORD_MAX) memcpy(text + weft_utf8_cut(text, RECORD_MAX - 3), "...", 4);
    for (size_t n = strlen(text); n > 0 && text[n - 1] == '\n';)
        text[--n] = '\0';
    weft_text_show(text, shown, sizeof shown); /* one line, whatever is in it */
    const char *colour = colours ? levels[level].colour : "";
    WEFT_LOCK(&lock);
    /* "2026-01-31T12:00:00.000+0100 " where times are asked for. */
    struct timespec now;
    struct tm local;
    char date[32], zone[8];
    *when = '\0';
    if (times) {
        clock_gettime(CLOCK_REALTIME, &now);
        localtime_r(&now.tv_sec, &local);
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &local);
        strftime(zone, sizeof zone, "%z", &local);
        snprintf(when, PREFIX_MAX, "%s.%03d%s ", date, (int)(now.tv_nsec / 1000000), zone);
    }
    draw_status(line);
    snprintf(buffer, sizeof buffer, "%s%s%s%-5s%s %s\n%s", *status ? erase_line : "", when, colour,
             name, *colour ? "\033[0m" : "", shown, line);
    write_to(STDERR_FILENO, buffer);
    snprintf(buffer, sizeof buffer, "%-5s %s\n", name, shown);
    if (copy >= 0) write_to(copy, buffer);
    errno = error;
}

void weft_log_copy(int descriptor) {
    WEFT_LOCK(&lock);
    copy = descriptor;
}

int weft_log_status_width(void) {
    pthread_once(&once, read_environment);
    if (!terminal) return 0;
    struct winsize size = {0};
    int width = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
    if (width < 1) width = 80;
    /* The last column stays free: some terminals go to the next line when it is written. */
    if (width > 1) width--;
    return width < STATUS_MAX / 4 ? width : STATUS_MAX / 4;
}

void weft_log_status(const char *text) {
    pthread_once(&once, read_environment);
    if (!terminal) return;
    char line[STATUS_MAX + PREFIX_MAX], buffer[STATUS_MAX + 2 * PREFIX_MAX];
    WEFT_LOCK(&lock);
    if (*status || (text && *text)) {
        snprintf(status, sizeof status, "%s", text ? text : "");
        /* One that can be shown, and no wider. */
        for (char *at = status; *at;) {
            int n = weft_utf8_length(at);
            bool shown = n && !weft_utf8_is_control(at, n);
            for (int i = 0; !shown && i < (n ? n : 1); i++)
                at[i] = ' ';
            at += n ? n : 1;
        }
        draw_status(line);
        snprintf(buffer, sizeof buffer, "%s%s", erase_line, line);
        write_to(STDERR_FILENO, buffer);
    }
}
