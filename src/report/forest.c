/* The forest plot: a row for each comparison with its difference, its interval and the line of no
 * difference. It is laid out by the page's style from percentages, so that it fits a telephone and needs
 * no script; Markdown gets a picture. */
#include "report/report.h"
#include "report/sections.h"

#include "base/files.h"
#include "base/order.h"

#include <ctype.h>

enum { SEEDS_MOST = 100, SHORT_LABEL = 24, FOREST_TICKS = 6 };
enum { ROW = 42, TRACK_LEFT = 300, TRACK_WIDTH = 380 }; /* of the picture */

/* The range of the forest: every interval, and 0; widths beyond four times the median are cut, so that
 * one that lies far out does not press the others flat; an arrow at the edge stands for it. */
typedef struct {
    double low, high;
    bool cut;
    weft_ticks ticks;
} extent;

static extent find_extent(const weft_report_data *d) {
    extent e = {.cut = false};
    WEFT_AUTO_FREE double *reach = calloc((size_t)d->n_variants + 1, sizeof *reach);
    int n = 0;
    EACH_VARIANT(v, d) {
        const weft_comparison *c = &v->compared;
        if (!reach || !weft_report_is_compared(v) || c->pairs < 1 || d->nothing_learned) continue;
        reach[n++] = c->pairs < 2 ? fabs(c->mean) : fmax(fabs(c->low), fabs(c->high));
    }
    if (n) qsort(reach, (size_t)n, sizeof *reach, weft_order_doubles);
    double most = n ? fmax(8 * reach[n / 2], 1e-12) : 1;
    EACH_VARIANT(v, d) {
        const weft_comparison *c = &v->compared;
        if (!weft_report_is_compared(v) || c->pairs < 1) continue;
        double low = c->pairs < 2 ? c->mean : c->low, high = c->pairs < 2 ? c->mean : c->high;
        e.cut = e.cut || low < -most || high > most;
        e.low = fmin(e.low, fmax(low, -most));
        e.high = fmax(e.high, fmin(high, most));
    }
    double room = 0.06 * (e.high - e.low);
    if (!(room > 0)) room = 1e-3;
    e.low -= room;
    e.high += room;
    weft_axis_ticks(e.low, e.high, FOREST_TICKS, &e.ticks);
    return e;
}

static double place_of(const extent *e, double value) {
    return fmin(fmax(100 * (value - e->low) / (e->high - e->low), 0), 100);
}

/* A variant of which nothing can be drawn yet has no row: a line names them all. */
static bool has_row(const weft_report_variant *v) {
    const weft_comparison *c = &v->compared;
    return weft_report_is_compared(v) && (c->pairs > 0 || c->verdict != WEFT_NOT_YET);
}

/* Seeds that did not count in a comparison, and why: " Left out: seed 3 (1 diverged)." */
static void write_left_out(FILE *out, const weft_report_variant *v, bool brief) {
    bool any = false;
    if (*v->error || *v->baseline->error) return;
    if (v->compared.pairs == 0 && v->compared.verdict == WEFT_NOT_YET) return;
    EACH_PAIR(pair, v, v->baseline) {
        if (pair.counts || (!pair.variant && !pair.baseline)) continue;
        fprintf(out, "%s seed %lld (", any ? "," : " Left out:", (long long)pair.seed);
        any = true;
        if (pair.variant && pair.baseline && pair.variant->to_come && pair.baseline->to_come) {
            fputs("not finished)", out);
            continue;
        }
        bool variant_bad = !pair.variant || !pair.variant->finished;
        bool base_bad = !pair.baseline || !pair.baseline->finished;
        if (variant_bad)
            fprintf(out, "%s %s", brief ? "it" : weft_say_variant(v),
                    weft_report_ended(pair.variant));
        if (base_bad)
            fprintf(out, "%s%s %s", variant_bad ? "; " : "",
                    brief ? "the baseline" : weft_say_variant(v->baseline),
                    weft_report_ended(pair.baseline));
        fputs(")", out);
    }
    if (any) fputs(".", out);
}

static void write_numbers(FILE *out, const weft_report_data *d, const weft_comparison *c) {
    if (c->pairs < 1) return;
    fprintf(out, " The %s is %s %s, ", d->score_name, weft_say_score(c->variant),
            c->minima ? "at its minimum" : "on average");
    if (c->mean == 0)
        fputs("the same as the baseline's", out);
    else
        fprintf(out, "%s %s than the baseline's", weft_say_change(c, fabs(c->mean)) + 1,
                c->mean < 0 ? "lower" : "higher");
    if (isfinite(c->percent)) fprintf(out, " (%+.2f%%)", c->percent);
    if (c->pairs >= 2)
        fprintf(out, "; %.0f%% interval %s to %s", 100 * WEFT_CONFIDENCE,
                weft_say_change(c, c->low), weft_say_change(c, c->high));
    fprintf(out, "; %s.", weft_say_pairs(d, c->pairs));
}

/* What a comparison that shows nothing still says: how large the difference can be at most, and how
 * many seeds would tell. */
static bool write_bound(FILE *out, const weft_comparison *c, bool brief) {
    int seeds = weft_seeds_needed(c);
    if (c->pairs < 2 || c->verdict != WEFT_NO_DIFFERENCE || !isfinite(c->low)) return false;
    const char *most = weft_say_change(c, fmax(fabs(c->low), fabs(c->high))) + 1;
    if (brief)
        fprintf(out, " Any difference is smaller than %s.", most);
    else
        fprintf(out, " With %.0f%% confidence, any difference is smaller than %s.",
                100 * WEFT_CONFIDENCE, most);
    if (seeds > c->pairs)
        fprintf(out,
                brief ? " %d seeds would show one as large as measured."
                      : " At this spread, %d seeds would show one of the size measured.",
                seeds);
    return true;
}

/* What is to be said of a comparison beside its numbers, in few words or in more, and whether it says how large a
 * difference that is not shown can be. */
static bool write_note(FILE *out, const weft_report_variant *v, bool brief) {
    bool bounded = !v->study->nothing_learned && v->leaks == v->baseline->leaks &&
                   write_bound(out, &v->compared, brief);
    write_left_out(out, v, brief);
    if (v->leaks && v->baseline->leaks) fputs(" Both leak: a token sees later ones.", out);
    return bounded;
}

static void put_row(weft_page *p, const weft_report_variant *v, const extent *e) {
    FILE *out = p->html;
    const weft_comparison *c = &v->compared;
    bool counted = weft_report_counts(v), doubted = weft_report_is_in_doubt(v);
    const char *why = doubted ? "in doubt: see the warnings above" : v->why;
    weft_html(out,
              v == weft_report_headline(v->study) ? "<div role=\"row\" class=\"lit\""
                                                  : "<div role=\"row\"",
              "", " data-key=\"", v->name, "\"><span class=\"step\" role=\"rowheader\">", v->label);
    if (!v->study->baseline || strlen(v->baseline->label) <= SHORT_LABEL)
        weft_html(out, " <small>against ", v->baseline->label, "</small>");
    fputs("</span><div class=\"track\">", out);
    for (int i = 0; i < e->ticks.n; i++)
        fprintf(out, "<i class=\"tick\" style=\"left:%.2f%%\"></i>", place_of(e, e->ticks.at[i]));
    fprintf(out, "<i class=\"zero\" style=\"left:%.2f%%\"></i>", place_of(e, 0));
    const char *kind = !counted || doubted || c->verdict == WEFT_NOT_YET ? "open"
                       : c->verdict == WEFT_BETTER                       ? "up"
                       : c->verdict == WEFT_WORSE                        ? "down"
                                                                         : "same";
    if (c->pairs >= 2) {
        double low = place_of(e, c->low), high = place_of(e, c->high);
        fprintf(out, "<i class=\"%s bar\" style=\"left:%.2f%%;width:%.2f%%\"></i>", kind, low,
                fmax(high - low, 0.3));
    }
    if (c->pairs >= 1)
        fprintf(out, "<i class=\"%s mean%s\" style=\"left:%.2f%%\"></i>", kind,
                c->mean < e->low    ? " before"
                : c->mean > e->high ? " beyond"
                                    : "",
                place_of(e, c->mean));
    fputs("</div>", out);
    weft_html(out, "<span class=\"value\" role=\"cell\">", weft_say_interval(c), "<small>",
              weft_say_share_interval(c),
              "</small></span><span class=\"verdict\" role=\"cell\"><b class=\"word ",
              doubted                     ? "plain"
              : c->verdict == WEFT_BETTER ? "good"
              : c->verdict == WEFT_WORSE  ? "bad"
                                          : "plain",
              "\">",
              *v->error  ? "cannot be built"
              : !counted ? "leaks: not compared"
                         : weft_say_verdict(v),
              "</b><small>");
    if (!write_note(p->words, v, true) && *why)
        fprintf(p->words, " %c%s.", toupper((unsigned char)*why), why + 1);
    weft_html(out, "", weft_page_words(p), "</small></span></div>\n");
}

static double pixel_of(const extent *e, double value) {
    return TRACK_LEFT + place_of(e, value) / 100 * TRACK_WIDTH;
}

/* A label that would begin left of the picture is drawn narrower. */
static void put_svg_label(FILE *out, double y, const char *label) {
    const double room = TRACK_LEFT - 14;
    double width = 0; /* about: capitals, as options have, are wider */
    for (const char *at = label; *at; at++)
        width += isupper((unsigned char)*at) || *at == '_' ? 10 : 7.5;
    if (width <= room) {
        weft_svg_text(out, room, y, "end", label);
        return;
    }
    fprintf(out,
            "<text x=\"0\" y=\"%.1f\" textLength=\"%.0f\" lengthAdjust=\"spacingAndGlyphs\" "
            "fill=\"ink\">",
            y, room);
    weft_html(out, "", label, "</text>\n");
}

/* The same as a picture by itself. */
static void draw_forest(FILE *out, const weft_report_data *d, const extent *e, int n) {
    double bottom = ROW * n + 12;
    fprintf(out,
            "<svg viewBox=\"0 0 960 %.0f\" font-family=\"system-ui,sans-serif\" font-size=\"15\" "
            "role=\"img\">\n",
            bottom + 30);
    for (int i = 0; i < e->ticks.n; i++) {
        double x = pixel_of(e, e->ticks.at[i]);
        weft_svg_line(out, x, 4, x, bottom, e->ticks.at[i] == 0 ? "ink" : "faint", 1);
        weft_svg_text(out, x, bottom + 20, "middle", e->ticks.text[i]);
    }
    int row = 0;
    EACH_VARIANT(v, d) {
        const weft_comparison *c = &v->compared;
        if (!has_row(v)) continue;
        double y = ROW * row++ + ROW / 2.0 + 6;
        int style = c->verdict == WEFT_BETTER  ? 2
                    : c->verdict == WEFT_WORSE ? 1
                                               : 6; /* green, red, grey */
        const char *colour = weft_report_counts(v) ? weft_plot_colour(style) : "faint";
        put_svg_label(out, y + 5, v->label);
        if (c->pairs >= 2)
            weft_svg_line(out, pixel_of(e, c->low), y, pixel_of(e, c->high), y, colour, 5);
        if (c->pairs >= 1)
            fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"6\" fill=\"%s\"/>\n",
                    pixel_of(e, c->mean), y, colour);
        weft_svg_text(out, TRACK_LEFT + TRACK_WIDTH + 14, y - 3, "start", weft_say_interval(c));
        weft_svg_text(out, TRACK_LEFT + TRACK_WIDTH + 14, y + 14, "start",
                      weft_say_share_interval(c));
    }
    fputs("</svg>\n", out);
}

/* The study's folder and the config in it, as words of a shell; false: none is there, or a path has a sign that a
 * shell takes for another. */
static bool find_config(const weft_report_data *d, char *folder, char *config) {
    size_t length = strlen(d->path), end = strlen("/runs.db");
    bool there = false;
    if (length > end && strcmp(d->path + length - end, "/runs.db") == 0) length -= end;
    while (length > 1 && d->path[length - 1] == '/')
        length--;
    if (weft_path(folder, "%.*s", (int)length, d->path) != WEFT_OK ||
        weft_path(config, "%s/" WEFT_STUDY_CONFIG, folder) != WEFT_OK ||
        weft_path_there(config, &there) != WEFT_OK)
        return false;
    for (const char *at = config; *at && there; at++)
        there = isalnum((unsigned char)*at) || strchr("/._-+,:@%=", *at);
    return there;
}

/* What to run where nothing was shown. */
static void say_more_seeds(weft_page *p, const weft_report_data *d) {
    char config[WEFT_PATH_MAX], folder[WEFT_PATH_MAX];
    const weft_report_variant *open = NULL; /* the comparison that the fewest would decide */
    EACH_VARIANT(v, d) {
        const weft_comparison *c = &v->compared;
        if (v->waiting) return; /* what was planned comes first */
        if (!weft_report_counts(v) || c->verdict != WEFT_NO_DIFFERENCE) continue;
        int needed = weft_seeds_needed(c);
        if (needed > c->pairs && (!open || needed < weft_seeds_needed(&open->compared))) open = v;
    }
    if (!open || d->nothing_learned) return;
    int more = weft_seeds_needed(&open->compared) - open->compared.pairs;
    bool there = more <= SEEDS_MOST && find_config(d, folder, config);
    weft_page_say(p,
                  "About %d more %s per variant would show a difference of this size between %s "
                  "and %s, if it and its spread stay as they are. Decide on a number once: adding "
                  "seeds until a difference shows finds one by chance.",
                  more, more == 1 ? "seed" : "seeds", open->label, open->baseline->label);
    if (there)
        weft_page_command(p, "weft study --config %s --out %s -o STUDY_SEEDS=%d", config, folder,
                          d->planned_seeds + more);
}

weft_status weft_report_forest(weft_page *p, const weft_report_data *d) {
    char config[WEFT_PATH_MAX], folder[WEFT_PATH_MAX];
    int n = weft_report_count(d, has_row), said = 0;
    int to_come = weft_report_count(d, weft_report_is_compared) - n;
    if (d->waiting > 0 && find_config(d, folder, config)) {
        weft_page_say(p, "This command continues the study:");
        weft_page_command(p, "weft study --config %s --out %s", config, folder);
    }
    EACH_VARIANT(v, d)
        if (weft_report_is_compared(v) && !has_row(v))
            fprintf(p->words, "%s%s", weft_say_between(said++, to_come), v->label);
    if (said) weft_page_line(p, "about", "Still to come: %s.", weft_page_words(p));
    if (n == 0) return WEFT_OK;
    extent e = find_extent(d);
    FILE *out = p->html;
    fputs("<div class=\"forest\" role=\"table\" aria-label=\"Differences from the baseline\">\n",
          out);
    EACH_VARIANT(v, d)
        if (has_row(v)) put_row(p, v, &e);
    fputs("<div aria-hidden=\"true\"><span class=\"none\"></span><div class=\"scale\">", out);
    for (int i = 0; i < e.ticks.n; i++) {
        fprintf(out, "<span style=\"left:%.2f%%\">%s", place_of(&e, e.ticks.at[i]),
                e.ticks.at[i] > 0 ? "+" : "");
        weft_html(out, "", e.ticks.text[i], "</span>");
    }
    fputs("</div><span class=\"none\"></span><span class=\"none\"></span></div>\n"
          "<div aria-hidden=\"true\"><span></span><div class=\"side\">",
          out);
    fprintf(out, "<span>\xe2\x86\x90 %s</span><span>%s \xe2\x86\x92</span>",
            d->higher_is_better ? "worse" : "better", d->higher_is_better ? "better" : "worse");
    fputs("</div><span></span><span></span></div>\n</div>\n", out);
    draw_forest(p->words, d, &e, n);
    weft_page_picture_md(p, weft_page_words(p), "Differences from the baseline");
    fputs("\n", p->md);
    /* Markdown has no rows with bars in them: it gets sentences. */
    EACH_VARIANT(v, d) {
        if (!weft_report_is_compared(v)) continue;
        fprintf(p->words, "%s against %s", weft_say_variant(v), weft_say_variant(v->baseline));
        fprintf(p->words, *v->why ? ": %s." : ".%s", v->why);
        write_numbers(p->words, d, &v->compared);
        write_note(p->words, v, false);
        weft_page_item_md(p, weft_say_verdict(v), weft_page_words(p));
    }
    /* What is drawn, and in what it is measured: the sentence above is in percent, the axis is not. */
    const weft_report_variant *base = d->baseline;
    weft_page_line(p, "about",
                   "Each row is a variant's difference in %s from %s%s, %sin percent of the "
                   "baseline; %s. Dots are means, bars %.0f%% confidence intervals.",
                   d->score_name, base ? base->label : "its own baseline",
                   base ? weft_say(" (%s)", weft_say_score(base->mean)) : "",
                   d->higher_is_better ? "absolute and " : "in nats per token and ",
                   weft_say_pairs(d, d->most_pairs), 100 * WEFT_CONFIDENCE);
    if (e.cut) weft_page_line(p, "about", "What reaches the edge goes on beyond it.");
    say_more_seeds(p, d);
    return WEFT_OK;
}
