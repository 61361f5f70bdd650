package rlcore

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// plainJSON is a Plain as it is stored. Jobs that wait in reality and in the schedule
// aren't: Wait adds them again, with the same result.
type plainJSON struct {
	StartupS float64        `json:"startup_s,omitempty"`
	NowS     float64        `json:"now_s"`
	GPUs     []string       `json:"gpus"`
	Jobs     []plainJobJSON `json:"jobs"`
}

// plainJobJSON is one job. EndS and TakesS are −1 where they are never.
type plainJobJSON struct {
	ID       string  `json:"id"`
	Priority float64 `json:"priority"`
	SubmitS  float64 `json:"submit_s"`
	TakesS   float64 `json:"takes_s"`
	GPUs     []int   `json:"gpus"`
	PerNode  int     `json:"per_node,omitempty"`
	Nodes    int     `json:"nodes,omitempty"`
	GPU      int     `json:"gpu"` // the first of On, −1 = none; all that there was up to 0.1
	On       []int   `json:"on,omitempty"`
	StartS   float64 `json:"start_s"`
	EndS     float64 `json:"end_s"`
	Place    string  `json:"place"` // queue, begun or past
	Runs     bool    `json:"runs,omitempty"`
	Over     bool    `json:"over,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (p *Plain) MarshalJSON() ([]byte, error) {
	p.settle()
	out := plainJSON{StartupS: p.StartupS, NowS: p.nowS, GPUs: p.gpus}
	finite := func(s float64) float64 {
		if math.IsInf(s, 1) {
			return -1
		}
		return s
	}
	place := make(map[*plainJob]string, len(p.jobs))
	for _, x := range p.begun {
		place[x] = "begun"
	}
	for _, x := range p.queue {
		place[x] = "queue"
	}
	for _, x := range p.jobs {
		if place[x] == "queue" && !x.runs {
			continue
		}
		first := -1
		if len(x.on) > 0 {
			first = x.on[0]
		}
		out.Jobs = append(out.Jobs, plainJobJSON{
			x.id, x.priority, x.submitS, finite(x.takesS), x.asks.gpus, x.asks.perNode, x.asks.nodes, first, x.on, finite(x.startS), finite(x.endS),
			cmp.Or(place[x], "past"), x.runs, x.over,
		})
	}
	slices.SortFunc(out.Jobs, func(a, b plainJobJSON) int { return cmp.Compare(p.jobs[a.ID].came, p.jobs[b.ID].came) })
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Plain) UnmarshalJSON(b []byte) error {
	var in plainJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*p = *NewPlain(in.GPUs...)
	p.StartupS, p.nowS, p.stale = in.StartupS, in.NowS, true
	never := func(s float64) float64 {
		if s < 0 {
			return math.Inf(1)
		}
		return s
	}
	for _, j := range in.Jobs {
		if p.jobs[j.ID] != nil || j.GPU < -1 || j.GPU >= len(in.GPUs) {
			return fmt.Errorf("plain schedule: job %.40q on GPU %d of %d", j.ID, j.GPU, len(in.GPUs))
		}
		if len(j.On) == 0 && j.GPU >= 0 {
			j.On = []int{j.GPU}
		}
		if slices.ContainsFunc(j.On, func(g int) bool { return g < 0 || g >= len(in.GPUs) }) {
			return fmt.Errorf("plain schedule: job %.40q on a GPU that there isn't", j.ID)
		}
		p.came++
		x := &plainJob{
			id: j.ID, came: p.came, priority: j.Priority, submitS: j.SubmitS, takesS: never(j.TakesS), asks: asks{j.GPUs, j.PerNode, j.Nodes}, on: j.On,
			startS: never(j.StartS), endS: never(j.EndS), runs: j.Runs, over: j.Over,
		}
		p.jobs[j.ID] = x
		switch j.Place {
		case "begun":
			p.begun = append(p.begun, x)
		case "queue":
			p.queue = append(p.queue, x)
		}
	}
	slices.SortFunc(p.queue, plainOrder)
	return nil
}
