# The line protocol of farm in base R: farm_serve(inputs, outputs, evaluate) serves a function.
#
# inputs, outputs: named sizes, c(k = 3, load = 3). evaluate(inputs, config): a named list of vectors in, a list of
# vectors in the order of the outputs out. gradient(out_wrt, in_wrt, inputs, sens, config): a vector; positions count
# from 1. config: the JSON text of the call's config; number_in(config, "tol", 1e-6) is a number in it.
farm_serve <- function(inputs, outputs, evaluate, gradient = NULL, name = "model") {
  numbers <- function(text) as.numeric(strsplit(gsub('"', "", text), ",", fixed = TRUE)[[1]])
  written <- function(x) {
    texts <- sprintf("%.17g", x)
    texts[is.nan(x) | is.na(x)] <- '"NaN"'
    texts[is.infinite(x)] <- ifelse(x[is.infinite(x)] > 0, '"Infinity"', '"-Infinity"')
    paste0("[", paste(texts, collapse = ","), "]")
  }
  quoted <- function(text) {
    text <- gsub("([\\\\\"])", "\\\\\\1", text)
    paste0('"', gsub("[[:cntrl:]]+", " ", text), '"')
  }
  sizes <- function(named) paste0("{", paste0('"', names(named), '":', named, collapse = ","), "}")
  # farm writes the keys of a request in a fixed order: what lies between two of them is found by a pattern.
  between <- function(line, pattern) sub(paste0("^.*?", pattern, ".*$"), "\\1", line, perl = TRUE)
  operations <- if (is.null(gradient)) '"evaluate"' else '"evaluate","gradient"'
  answer <- function(line, op) {
    if (op == "describe") {
      return(sprintf('"name":"%s","inputs":%s,"outputs":%s,"operations":[%s]', name, sizes(inputs), sizes(outputs),
                     operations))
    }
    lists <- strsplit(between(line, '"inputs":\\[\\[(.*?)\\]\\]'), "],[", fixed = TRUE)[[1]]
    values <- setNames(lapply(lists, numbers), names(inputs))
    config <- between(line, '"config":(\\{.*\\})\\}')
    if (op == "evaluate") {
      return(sprintf('"outputs":[%s]', paste(vapply(evaluate(values, config), written, ""), collapse = ",")))
    }
    out_wrt <- as.integer(between(line, '"out_wrt":(\\d+)')) + 1L
    in_wrt <- as.integer(between(line, '"in_wrt":(\\d+)')) + 1L
    sens <- numbers(between(line, '"sens":\\[(.*?)\\]'))
    sprintf('"value":%s', written(gradient(out_wrt, in_wrt, values, sens, config)))
  }
  requests <- file("stdin", "r")
  while (length(line <- readLines(requests, n = 1)) > 0) {
    id <- between(line, '"id":(\\d+)')
    op <- between(line, '"op":"(\\w+)"')
    reply <- tryCatch(answer(line, op), error = function(e) sprintf('"error":%s', quoted(conditionMessage(e))))
    cat(sprintf('{"id":%s,%s}\n', id, reply))
    flush(stdout())
  }
}

number_in <- function(config, key, default) {
  pattern <- sprintf('.*"%s":([-+0-9.eE]+).*', key)
  if (grepl(pattern, config)) as.numeric(sub(pattern, "\\1", config)) else default
}
