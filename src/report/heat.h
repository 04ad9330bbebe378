/* A table of numbers as a picture: a square for each, darker where it is larger. */
#ifndef WEFT_REPORT_HEAT_H
#define WEFT_REPORT_HEAT_H

typedef struct {
    const char *title; /* for readers who do not see it */
    const char *row_label, *column_label;
    int rows, columns;
    int row_first, column_first; /* the numbers that the rows and columns begin with */
    double low, high;            /* the values of the lightest and the darkest square */
    const double *values;        /* [rows, columns]; NaN: left empty */
    int style;                   /* as in weft_plot_series */
} weft_heat;

/* SVG for a page; each square tells its value on hover. The caller frees it. NULL: no memory. */
char *weft_heat_svg(const weft_heat *heat);

#endif
