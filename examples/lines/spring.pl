#!/usr/bin/env perl
# A chain of springs fixed at one end: displacements under loads, with gradient, over the line protocol of farm.
# Needs perl alone. farm writes the keys of a request in a fixed order, so patterns suffice to read it.
use strict;
use warnings;
$| = 1;    # farm waits for each reply

# Numbers come with all digits, and as "NaN", "Infinity" or "-Infinity" where JSON has none.
sub list { return map { s/"//gr } split /,/, shift }

sub json {
    my @texts = map {
        $_ != $_ ? '"NaN"' : $_ == 9**9**9 ? '"Infinity"' : $_ == -9**9**9 ? '"-Infinity"' : sprintf('%.17g', $_)
    } @_;
    return '[' . join(',', @texts) . ']';
}

while (my $line = <STDIN>) {
    my ($id, $op) = $line =~ /^\{"id":(\d+),"op":"(\w+)"/ or die "not a request: $line";
    if ($op eq 'describe') {
        print qq({"id":$id,"name":"spring","inputs":{"k":3,"load":3},"outputs":{"shift":3},),
            qq("operations":["evaluate","gradient"]}\n);
        next;
    }
    my ($k, $load) = $line =~ /"inputs":\[\[(.*?)\],\[(.*?)\]\]/;
    my @k    = list($k);
    my @load = list($load);
    if (grep { $_ <= 0 } @k) {
        print qq({"id":$id,"error":"stiffness k is @k; expected numbers above 0","kind":"InvalidInput"}\n);
        next;
    }
    # Spring i carries the loads from i to the end.
    my @force = map { my $i = $_; my $sum = 0; $sum += $_ for @load[$i .. $#load]; $sum } 0 .. $#k;
    if ($op eq 'evaluate') {
        my ($at, @shift) = (0);
        push @shift, $at += $force[$_] / $k[$_] for 0 .. $#k;
        print qq({"id":$id,"outputs":[), json(@shift), "]}\n";
        next;
    }
    my ($in)   = $line =~ /"in_wrt":(\d+)/;
    my ($sens) = $line =~ /"sens":\[(.*?)\]/;
    my @sens   = list($sens);
    # The sensitivity of all shifts to the length of spring i.
    my @pull = map { my $i = $_; my $sum = 0; $sum += $_ for @sens[$i .. $#sens]; $sum } 0 .. $#k;
    my @value;
    if ($in == 0) {
        @value = map { -$pull[$_] * $force[$_] / $k[$_]**2 } 0 .. $#k;
    }
    else {
        my $sum = 0;
        @value = map { $sum += $pull[$_] / $k[$_] } 0 .. $#k;
    }
    print qq({"id":$id,"value":), json(@value), "}\n";
}
