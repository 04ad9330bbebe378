/* The script and the style of pages with charts, as they are in charts.js and charts.css, for a page to
 * hold whole: the report, and the live page of runs. charts.js tells how a page calls it. */
#ifndef WEFT_REPORT_CHARTS_H
#define WEFT_REPORT_CHARTS_H

extern const char weft_charts_script[], weft_charts_style[];

#endif
