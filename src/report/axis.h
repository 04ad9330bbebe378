/* The numbers on an axis: round ones, few enough not to touch, in one unit. charts.js chooses the same. */
#ifndef WEFT_REPORT_AXIS_H
#define WEFT_REPORT_AXIS_H

enum { WEFT_TICKS_MOST = 32, WEFT_TICK_ROOM = 24 };

typedef struct {
    int n;
    double at[WEFT_TICKS_MOST];
    char text[WEFT_TICKS_MOST][WEFT_TICK_ROOM];
} weft_ticks;

/* At most `most` multiples of 1, 2 or 5 times a power of ten within [low, high]. Their texts have one
 * unit, of k, M, G and so on where a number reaches 10,000, and as many decimals as the step between
 * them. None where the range is empty or not finite. */
void weft_axis_ticks(double low, double high, int most, weft_ticks *out);
/* The same for a logarithmic axis, low > 0: powers of ten, with 2 and 5 between them where they fit. */
void weft_axis_log_ticks(double low, double high, int most, weft_ticks *out);

typedef enum { WEFT_UNIT_COUNT, WEFT_UNIT_SECONDS, WEFT_UNIT_BYTES } weft_unit;

/* What a quantity up to `most` is counted in: {60, "min"}, {1024, "KiB"}; {1, ""} for a count. */
typedef struct {
    double by;
    const char *name;
} weft_scale;
weft_scale weft_axis_scale(weft_unit unit, double most);

#endif
