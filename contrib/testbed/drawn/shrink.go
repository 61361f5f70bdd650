package drawn

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
)

// part is something that can be taken out of a case: a job, an event, or a line or an option of something.
type part struct{ kind, of, text string }

// parts lists what of a case can be taken out; of jobs all but the one that is to differ.
func (c *Case) parts(keep string) (jobs, rest []part) {
	for _, j := range c.Jobs {
		if j.Name != keep {
			jobs = append(jobs, part{"job", j.Name, ""})
		}
		for _, a := range j.Args {
			if !strings.HasPrefix(a, "--time=") && a != ":" {
				rest = append(rest, part{"option", j.Name, a})
			}
		}
		for _, s := range j.Steps {
			rest = append(rest, part{"step", j.Name, s})
		}
		for _, e := range j.Within {
			rest = append(rest, part{"within", j.Name, e.Command})
		}
		for _, e := range j.Events {
			rest = append(rest, part{"event", j.Name, e.Command})
		}
	}
	for _, e := range c.Events {
		rest = append(rest, part{"event", "", e.Command})
	}
	for _, l := range c.Conf {
		rest = append(rest, part{"conf", "", l})
	}
	for _, n := range c.Nodes {
		if n.More != "" {
			rest = append(rest, part{"node", "", n.More})
		}
	}
	return jobs, rest
}

// without returns a copy of a case without some of its parts, and without what needs them.
func (c *Case) without(out []part) *Case {
	body, err := json.Marshal(c)
	n := &Case{}
	if err != nil || json.Unmarshal(body, n) != nil {
		return c
	}
	gone := func(kind, of, text string) bool { return slices.Contains(out, part{kind, of, text}) }
	missing := func(text string) bool {
		return slices.ContainsFunc(out, func(p part) bool {
			return p.kind == "job" && strings.Contains(text, "{"+p.of+"}")
		})
	}
	n.Jobs = slices.DeleteFunc(n.Jobs, func(j Job) bool { return gone("job", j.Name, "") })
	for i := range n.Jobs {
		j := &n.Jobs[i]
		j.Args = slices.DeleteFunc(j.Args, func(a string) bool { return gone("option", j.Name, a) || missing(a) })
		j.Steps = slices.DeleteFunc(j.Steps, func(s string) bool { return gone("step", j.Name, s) })
		j.Within = slices.DeleteFunc(j.Within, func(e Event) bool { return gone("within", j.Name, e.Command) })
		j.Events = slices.DeleteFunc(j.Events, func(e Event) bool {
			return gone("event", j.Name, e.Command) || missing(e.Command)
		})
	}
	n.Events = slices.DeleteFunc(n.Events, func(e Event) bool { return gone("event", "", e.Command) })
	n.Conf = slices.DeleteFunc(n.Conf, func(l string) bool { return gone("conf", "", l) })
	for i := range n.Nodes {
		if gone("node", "", n.Nodes[i].More) {
			n.Nodes[i].More = ""
		}
	}
	return n
}

// shrink takes out of a case whatever isn't needed for a difference. Trials run several at once, since each is mostly
// waiting.
func (o *options) shrink(ctx context.Context, c *Case, d *difference, root string) (*Case, error) {
	name, _, _ := strings.Cut(d.Job, "_")
	jobs, _ := c.parts(name)
	c, err := o.shrinkBy(ctx, c, jobs, d, root)
	if err != nil {
		return c, err
	}
	_, rest := c.parts(name)
	return o.shrinkBy(ctx, c, rest, d, root)
}

// shrinkBy takes out as many of some parts as it can: first many at once, in the end each alone.
func (o *options) shrinkBy(ctx context.Context, c *Case, parts []part, d *difference, root string) (*Case, error) {
	for size := (len(parts) + 1) / 2; size > 0 && len(parts) > 0; size /= 2 {
		chunks := slices.Collect(slices.Chunk(parts, size))
		shows := make([]bool, len(chunks))
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(o.parallel)
		for i, chunk := range chunks {
			g.Go(func() (err error) { shows[i], err = o.shows(gctx, c.without(chunk), d, root); return err })
		}
		if err := g.Wait(); err != nil {
			return c, err
		}
		var first, all []part
		for i, chunk := range chunks {
			if shows[i] {
				all = append(all, chunk...)
				if first == nil {
					first = chunk
				}
			}
		}
		if len(all) > len(first) { // each can go; perhaps all can
			if together, err := o.shows(ctx, c.without(all), d, root); err != nil {
				return c, err
			} else if together {
				first = all
			}
		}
		c = c.without(first)
		parts = slices.DeleteFunc(parts, func(p part) bool { return slices.Contains(first, p) })
		fmt.Fprintf(o.out, "seed %d shrinks: %d jobs, %d lines of slurm.conf\n", c.Seed, len(c.Jobs), len(c.Conf))
	}
	return c, nil
}

// shows reports whether a case shows a difference.
func (o *options) shows(ctx context.Context, c *Case, d *difference, root string) (bool, error) {
	r, err := o.both(ctx, c, root)
	if err != nil {
		return false, ctx.Err()
	}
	return slices.ContainsFunc(r.unstated(), func(x difference) bool { return x.Job == d.Job && x.Kind == d.Kind }), nil
}

// shrinkFirst shrinks the case of an outcome to its first difference, and writes the small case beside the whole one.
func (o *options) shrinkFirst(ctx context.Context, dir string, c *Case, r *outcome, root string) error {
	all := r.unstated()
	if len(all) == 0 {
		return nil
	}
	small, err := o.shrink(ctx, c, &all[0], root)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, fmt.Sprintf("seed-%d-small.json", c.Seed))
	fmt.Fprintf(o.out, "seed %d, in %s:\n%s  %v\n", c.Seed, file, small, &all[0])
	return cluster.WriteJSON(file, small)
}

// String is a case for people: its cluster, its jobs and its events, a line each.
func (c *Case) String() string {
	var b strings.Builder
	for i, n := range c.Nodes {
		fmt.Fprintf(&b, "  n%d: %s, %s, %d CPUs, %s\n", i+1, strings.Join(n.Types, " "), c.Sharing, c.CPUs, n.More)
	}
	for _, l := range slices.Concat(c.Conf, c.Settings, c.Accounting, c.Before) {
		fmt.Fprintf(&b, "  %s\n", l)
	}
	for i := range c.Jobs {
		j := &c.Jobs[i]
		fmt.Fprintf(&b, "  %d s  %s of %s, %d s: %v\n", j.AtS, j.Name, j.User, j.LengthS, j)
	}
	for _, e := range c.Events {
		fmt.Fprintf(&b, "  %d s  %s\n", e.AtS, e.Command)
	}
	return b.String()
}
