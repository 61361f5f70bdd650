package job

import (
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// Each thing that keeps jobs from sharing, or harms them, has its word and its reason.
func TestHealthHasAWordAndAReason(t *testing.T) {
	zero := time.Unix(1e9, 0)
	for name, c := range map[string]struct {
		change func(s *Status)
		state  HealthState
		why    string
	}{
		"all is well":            {func(*Status) {}, Well, ""},
		"the last poll failed":   {func(s *Status) { s.Err = "timeout" }, Well, ""},
		"no poll for long":       {func(s *Status) { s.At, s.Err = zero.Add(-time.Hour), "timeout" }, Down, "1h1m0s ago: timeout"},
		"no gate":                {func(s *Status) { s.Gate, s.GateErr = "", "refused" }, Down, "no gate, so shared jobs run alone: refused"},
		"no gate in shadow":      {func(s *Status) { s.Gate, s.Mode = "", Shadow }, Well, ""},
		"a gate that is misread": {func(s *Status) { s.Misread = []Misread{{Field: "Priority"}} }, Down, "otherwise than it was submitted"},
		"no GPU":                 {func(s *Status) { s.Shareable = GPUCount{} }, Down, "no node has a GPU"},
		"no shares":              {func(s *Status) { s.Shareable = GPUCount{All: 160} }, Down, "none of the 160 GPUs has shares"},
		"all nodes down":         {func(s *Status) { s.Shareable = GPUCount{All: 8, WithParts: 4} }, Down, "none of the 4 GPUs with shares"},
		"no partition":           {func(s *Status) { s.Shareable.Open = 0 }, Down, "sharers_only"},
		"one refusal":            {func(s *Status) { s.Refused = []RefusedChanges{{Step: StepPrepare, Times: 1}} }, Well, ""},
		"jobs given up": {
			func(s *Status) {
				s.Refused = []RefusedChanges{{Step: StepPrepare, Code: "SLURM_ERROR", GivenUp: 1, Example: "4711", Text: "eve's"}}
			},
			Impaired, "Slurm refuses to give a job its shares of a GPU (SLURM_ERROR)",
		},
		"two harmed of ten":        {func(s *Status) { s.Harm = HarmCount{Shared: 10, Harmed: 2} }, Well, ""},
		"ten harmed of a thousand": {func(s *Status) { s.Harm = HarmCount{Shared: 1000, Harmed: 10} }, Well, ""},
		"many broken contracts": {
			func(s *Status) { s.Harm = HarmCount{600, 504, map[string]int{"late": 4, "contract": 500}} },
			Impaired, "504 of the 600 runs of the last day that shared a GPU were worse off than on plain Slurm (contract 500, late 4)",
		},
		"another policy": {func(s *Status) { s.Wanted = "dqn" }, Impaired, "policy srpt decides in place of dqn"},
	} {
		s := &Status{
			At: zero, Mode: Active, Gate: "7", Policy: "srpt", Wanted: "srpt", Shareable: GPUCount{All: 5, WithParts: 4, Up: 4, Open: 4},
		}
		c.change(s)
		got := s.Health(zero.Add(time.Minute), 90*time.Second)
		if strings.Contains(got.Why, "4711") || strings.Contains(got.Why, "eve") {
			t.Errorf("%s: all users read %q", name, got.Why)
		}
		if got.State != c.state || !strings.Contains(got.Why, c.why) || (got.Why == "") != (got.State == Well) {
			t.Errorf("%s: %+v, want %s because of %q", name, got, c.state, c.why)
		}
	}
	must.Equal(t, (*Status)(nil).Health(zero, time.Minute).State, Down)
}

// GPUs count as open where jobs may share them.
func TestCountGPUs(t *testing.T) {
	node := func(partition string, units int, up bool) Node {
		return Node{GPUs: 2, Units: 2 * units, Up: up, Partitions: []string{partition}}
	}
	s := &Snapshot{Nodes: []Node{
		node("gpu", Units, true), node("gpu", Units, false), node("gpu", 0, true), node("other", Units, true),
	}}
	for name, c := range map[string]struct {
		filter   PartitionFilter
		mistakes bool
		open     int
	}{
		"all":                            {PartitionFilter{}, false, 4},
		"one partition":                  {PartitionFilter{Include: []string{"gpu"}}, false, 2},
		"a partition that isn't there":   {PartitionFilter{Include: []string{"gqu"}}, false, 0},
		"before 25.05":                   {PartitionFilter{}, true, 0},
		"before 25.05, nothing but some": {PartitionFilter{SharersOnly: []string{"gpu"}}, true, 2},
		"before 25.05, mixed anyway":     {PartitionFilter{MixAnyway: true}, true, 4},
	} {
		s.MistakesGPUs = c.mistakes
		must.Equal(t, c.filter.CountGPUs(s), GPUCount{All: 8, WithParts: 6, Up: 4, Open: c.open}, name)
	}
	s.WholeNodes, s.MistakesGPUs = map[string]bool{"other": true}, false
	must.Equal(t, (&PartitionFilter{}).CountGPUs(s).Open, 2, "one hands out whole nodes")
	s.Nodes[0].Partitions, s.MistakesGPUs = []string{"gpu", "other"}, true
	must.Equal(t, (&PartitionFilter{SharersOnly: []string{"gpu"}}).CountGPUs(s).Open, 2, "before 25.05, beside whole nodes")
}
