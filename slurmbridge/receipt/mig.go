package receipt

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/replay"
)

// layouts are the compared ways to cut a GPU, by the slices of the instances; nil = whole.
var layouts = []struct {
	name   string
	slices []int
}{{"whole", nil}, {"2 × 3g", []int{3, 3}}, {"3 × 2g + 1g", []int{2, 2, 2, 1}}, {"7 × 1g", []int{1, 1, 1, 1, 1, 1, 1}}}

// Layout is the result with each GPU that can be cut cut in one way. Times are in hours.
type Layout struct {
	Name   string `json:"name"`
	Shared bool   `json:"shared"`
	GPUs   int    `json:"gpus"` // and instances
	Lot
	Memory  int `json:"refused_memory"`      // jobs that need more memory than any instance has
	Several int `json:"refused_several"`     // jobs of several GPUs, which can't use instances
	OOM     int `json:"memory_failures"`     // runs that lacked memory while sharing
	AtLimit int `json:"ended_at_time_limit"` // jobs
}

// refuses reports whether the layout has no room for a job.
func (l *Layout) refuses() bool { return l.Memory+l.Several > 0 }

// Layouts compares ways to cut the GPUs into MIG instances, with the same jobs.
type Layouts struct {
	Jobs    int            `json:"jobs"`
	LeftOut map[string]int `json:"left_out,omitempty"`
	Cut     int            `json:"gpus_cut"`
	Whole   int            `json:"gpus_left_whole"` // they can't be cut, or are instances already
	Layouts []Layout       `json:"layouts"`
	Best    int            `json:"best"` // index of the layout with the earliest ends that refuses no job, −1 = none
}

type cluster struct {
	gpus         []rlcore.GPUSpec
	nodes, cards []string
	parts        map[string]float64 // the fraction of a GPU's SMs, by card
	places       map[string][]int   // GPUs by partition
	cut, whole   int
}

// whole is the card of a GPU that isn't cut.
const whole = "whole"

// cluster returns the nodes' GPUs, cut into instances with these slices where possible.
func (w *World) cluster(instances []int) *cluster {
	c := &cluster{parts: map[string]float64{}, places: map[string][]int{}}
	for i := range w.Nodes {
		n := &w.Nodes[i]
		add := func(spec rlcore.GPUSpec, card string, part float64) {
			for _, p := range n.Partitions {
				c.places[p] = append(c.places[p], len(c.gpus))
			}
			c.gpus = append(c.gpus, spec)
			c.nodes = append(c.nodes, n.Name)
			c.cards = append(c.cards, card)
			c.parts[card] = part
		}
		for g := range n.GPUs {
			typ := n.GPU(g).Type
			if w.Cut != nil {
				if _, can := w.Cut(typ, 1); can {
					c.cut++
					for _, slices := range instances {
						spec, _ := w.Cut(typ, slices)
						add(spec, fmt.Sprintf("%dg", slices), job.Instance{Slices: slices}.SMs())
					}
					if instances != nil {
						continue
					}
				} else {
					c.whole++
				}
			}
			spec, ok := w.Card(typ)
			if !ok {
				spec = rlcore.GPUSpec{Model: typ, MemMiB: 1 << 20, MaxClients: 1} // an unknown card isn't shared
			}
			add(spec, whole, 1)
		}
	}
	return c
}

// MIG replays the jobs with the GPUs cut in each way, twice: each job alone on a GPU or instance, and with sharing
// among the jobs that requested it or used little of a whole GPU.
func (w *World) MIG(jobs []history.Run) (*Layouts, error) {
	out := &Layouts{LeftOut: map[string]int{}, Best: -1}
	own := *w
	own.Limit = cmp.Or(w.Limit, 5_000)
	known := slices.DeleteFunc(slices.Clone(jobs), func(j history.Run) bool {
		why := ""
		perNode, nodes := replay.GPUs(&j)
		switch {
		case perNode*nodes > 1: // a job of several GPUs needs no profile: it never shares
		case j.Profile == nil:
			why = "what it used isn't known"
		case j.Profile.Preallocating(j.CardMemMiB()):
			why = "it took most of the GPU's memory at its start: what it needs isn't known"
		}
		if why != "" {
			out.LeftOut[why]++
		}
		return why != ""
	})
	for _, way := range layouts {
		c := own.cluster(way.slices)
		out.Cut = c.cut
		out.Whole = c.whole
		if c.cut == 0 {
			return nil, fmt.Errorf("%w: no GPU of the nodes is known to have MIG and to be whole now", ErrReplay)
		}
		for _, share := range []bool{false, true} {
			l, err := own.layout(known, c, share, out)
			if err != nil {
				return nil, err
			}
			l.Name = way.name
			if !l.refuses() && (out.Best < 0 || l.Turnaround < out.Layouts[out.Best].Turnaround) {
				out.Best = len(out.Layouts)
			}
			out.Layouts = append(out.Layouts, *l)
		}
	}
	return out, nil
}

func (w *World) layout(jobs []history.Run, c *cluster, share bool, all *Layouts) (*Layout, error) {
	left := map[string]int{}
	p, err := w.prepare(c, jobs, left)
	if err != nil {
		return nil, err
	}
	l := &Layout{Shared: share, GPUs: len(c.gpus), Memory: left[noMemory], Several: left[noGPUs]}
	all.Jobs = max(all.Jobs, len(p.in)+l.Memory+l.Several)
	for why, n := range left {
		if why != noMemory && why != noGPUs {
			all.LeftOut[why] = n
		}
	}
	for i, j := range p.in {
		might, _ := wouldShare(j)
		p.cfg.Jobs[i].NoShare = p.cfg.Jobs[i].NoShare && !might
	}
	d := alone()
	if share {
		d = p.decider
	}
	res, err := p.play(d, p.cfg.Jobs)
	if err != nil {
		return nil, err
	}
	l.Lot = lot(res)
	l.OOM = res.OOM
	for i := range res.Jobs {
		if res.Jobs[i].TimedOut {
			l.AtLimit++
		}
	}
	return l, nil
}

// Text writes the comparison for a terminal.
func (x *Layouts) Text(out io.Writer) {
	p := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	left := ""
	if x.Whole > 0 {
		left = fmt.Sprintf("; %s can't be, or are instances already, and stay as they are", job.Count(x.Whole, "other"))
	}
	p("What if each of %s were cut into MIG instances (estimate)%s:", job.Count(x.Cut, "GPU"), left)
	t := newTable(out, "each GPU", "jobs", "done after", "mean wait", "all done after", "refused: memory", "several GPUs")
	for i := range x.Layouts {
		l := &x.Layouts[i]
		how := "alone"
		if l.Shared {
			how = "sharing"
		}
		t.AppendRow(table.Row{l.Name, how, job.Span(l.Turnaround), job.Span(l.Wait), job.Span(l.Span), l.Memory, l.Several})
	}
	t.Render()
	if x.Best < 0 {
		p("Each layout refuses a job.")
	} else {
		b := &x.Layouts[x.Best]
		how := "each job alone"
		if b.Shared {
			how = "those sharing that may"
		}
		p("Jobs would have ended earliest, with none refused, with each GPU as %s, %s: after %s on average.", b.Name, how,
			job.Span(b.Turnaround))
	}
	p("- %d jobs were run on a simulator of the GPUs, in each way. An instance has the memory of its name and an "+
		"eighth of the GPU's SMs for each slice: what keeps more of them busy takes longer there, by the application's "+
		"profile. It is assumed that instances of a GPU don't slow each other, and that a slice's memory is as fast as the "+
		"job needs.", x.Jobs)
	p("- Sharing are the jobs that asked for it, and those that used less than half of a whole GPU.")
	for _, why := range slices.Sorted(maps.Keys(x.LeftOut)) {
		p("- Not replayed: %s (%s).", job.Count(x.LeftOut[why], "job"), why)
	}
	p("- No GPU is changed: cutting one is the admin's, on a drained node, and gres.conf and slurm.conf name the " +
		"instances.")
}
