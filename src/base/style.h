/* The style that all pages share, as it is in base/page.css, whose head says how a page uses it. */
#pragma once

extern const char weft_page_style[];
