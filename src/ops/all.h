/* Every family of operations, for whoever builds graphs of them or rewrites them. */
#pragma once

#include "ops/activation.h"
#include "ops/arith.h"
#include "ops/documents.h"
#include "ops/embedding.h"
#include "ops/gated.h"
#include "ops/gaussian.h"
#include "ops/heads.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/routing.h"
#include "ops/time.h"
