# A chain of springs fixed at one end: displacements under loads, with gradient. Base R alone.
source("farm_lines.R")

to_the_end <- function(x) rev(cumsum(rev(x)))

farm_serve(
  name = "spring",
  inputs = c(k = 3, load = 3),
  outputs = c(shift = 3),
  evaluate = function(inputs, config) {
    if (any(inputs$k <= 0, na.rm = TRUE)) stop("stiffness k is ", toString(inputs$k), "; expected numbers above 0")
    list(cumsum(to_the_end(inputs$load) / inputs$k))
  },
  gradient = function(out_wrt, in_wrt, inputs, sens, config) {
    pull <- to_the_end(sens)
    if (in_wrt == 1) -pull * to_the_end(inputs$load) / inputs$k^2 else cumsum(pull / inputs$k)
  }
)
