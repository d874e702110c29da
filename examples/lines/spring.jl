# A chain of springs fixed at one end: displacements under loads, with gradient. Julia's standard library alone.

numbers(text) = [parse(Float64, strip(each, '"')) for each in split(text, ",")]
written(x) = "[" * join([isfinite(v) ? string(v) : isnan(v) ? "\"NaN\"" : v > 0 ? "\"Infinity\"" : "\"-Infinity\"" for v in x], ",") * "]"
quoted(text) = "\"" * replace(text, "\\" => "\\\\", "\"" => "\\\"", r"[[:cntrl:]]+" => " ") * "\""
to_the_end(x) = reverse(cumsum(reverse(x)))

function answer(line, op)
    op == "describe" && return """"name":"spring","inputs":{"k":3,"load":3},"outputs":{"shift":3},"operations":["evaluate","gradient"]"""
    # farm writes the keys of a request in a fixed order, so patterns suffice to read it.
    k, load = numbers.(match(r"\"inputs\":\[\[(.*?)\],\[(.*?)\]\]", line).captures)
    any(k .<= 0) && error("stiffness k is $(join(k, ", ")); expected numbers above 0")
    force = to_the_end(load)
    op == "evaluate" && return "\"outputs\":[$(written(cumsum(force ./ k)))]"
    pull = to_the_end(numbers(match(r"\"sens\":\[(.*?)\]", line)[1]))
    in_wrt = parse(Int, match(r"\"in_wrt\":(\d+)", line)[1])
    "\"value\":" * written(in_wrt == 0 ? -pull .* force ./ k .^ 2 : cumsum(pull ./ k))
end

for line in eachline(stdin)
    id, op = match(r"\"id\":(\d+),\"op\":\"(\w+)\"", line).captures
    reply = try
        answer(line, op)
    catch fault
        "\"error\":" * quoted(sprint(showerror, fault))
    end
    println("{\"id\":$id,$reply}")
    flush(stdout)
end
