package drawn

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// A seed always draws the same, and no two seeds do. What is refused, or known to be wrong, is drawn if that is asked
// for.
func TestASeedDrawsTheSame(t *testing.T) {
	before := ""
	options := map[bool]map[string]bool{false: {}, true: {}}
	for seed := range uint64(300) {
		c := draw(seed, "22.05.8", false, nil)
		if diff := cmp.Diff(c, draw(seed, "22.05.8", false, nil)); diff != "" {
			t.Fatalf("seed %d draws another case: %s", seed, diff)
		}
		for _, all := range []bool{false, true} {
			for _, j := range draw(seed, "26.05.5", all, nil).Jobs {
				for _, a := range j.Args {
					options[all][a] = true
				}
			}
		}
		now := fmt.Sprintf("%+v", c.Jobs)
		must.Equal(t, now == before, false, "seeds %d and %d draw the same", seed, seed-1)
		before = now
	}
	must.Equal(t, options[false]["--reboot"], false)
	must.Equal(t, options[false]["--oom-kill-step=1"], true, "an option of later releases")
	for seed := range uint64(300) {
		for _, j := range draw(seed, "22.05.8", true, nil).Jobs {
			must.Equal(t, j.has("--oom-kill-step"), false, "an option of later releases on 22.05.8")
		}
	}
	must.Equal(t, options[true]["--reboot"], true)
}

// ran is a job that ran from when to when, s.
func ran(start, end float64) *seen {
	return &seen{State: "COMPLETED", Exit: "0:0", Restarts: "0", Start: start, End: end}
}

func waits() *seen {
	return &seen{State: "PENDING", Reason: "Resources", Start: math.NaN(), End: math.NaN()}
}

// Services are cancelled, and by then the first of them has run alone for longer than two minutes; sessions of a long
// campaign are idle for longer than ten.
func TestTimesOfServicesAndSessions(t *testing.T) {
	services, idle := 0, 0
	for seed := range uint64(300) {
		if c := draw(seed, "22.05.8", false, nil); c.Jobs[0].New {
			services++
			must.Equal(t, c.Jobs[0].Within[0].AtS > 120 && c.Jobs[1].AtS > c.Jobs[0].Within[0].AtS, true, "seed %d", seed)
		}
	}
	for seed := range uint64(10) {
		for _, j := range draw(seed, "22.05.8", false, &campaign{gpus: 8, lengthS: 1200}).Jobs {
			if strings.Contains(fmt.Sprint(j.Steps), "idle") {
				idle++
				must.Equal(t, strings.Contains(fmt.Sprint(j.Steps), "idle 660"), true, "%v", &j)
			}
		}
	}
	must.Equal(t, services > 3 && idle > 3, true, "%d services, %d idle sessions", services, idle)
}

// Each way in which jobs fare otherwise is found, and what the pages state is told apart.
func TestHowJobsFareOtherwise(t *testing.T) {
	but := func(set func(s *seen)) *seen {
		s := ran(1, 9)
		set(s)
		return s
	}
	sees := func(vars map[string]string) *seen {
		return but(func(s *seen) { s.Environment = map[string]map[string]string{"batch.0": vars} })
	}
	twice := but(func(s *seen) { s.Restarts = "1" })
	alone := sees(map[string]string{"CUDA_VISIBLE_DEVICES": "0"})
	alone.Gres = "gres:mps:30"
	spread := but(func(s *seen) { s.Nodes, s.Mem = "2", "2G" })
	spreads := Job{Args: []string{"--ntasks=3"}}
	fixed := Job{Args: []string{"--ntasks=3", "--nodes=1"}}
	upTo2 := Job{Args: []string{"--gres=gpu:1", "--nodes=1-2"}}
	binds := Job{Args: []string{"--gres-flags=enforce-binding"}}
	twoGPUs := Job{Args: []string{"--gpus=2"}}
	instance := sees(map[string]string{"CUDA_VISIBLE_DEVICES": "MIG-1"})
	instance.Gres = "gres/shard:1g.5gb:100"
	ended := func(status string) *seen {
		return but(func(s *seen) { s.Steps = map[string]string{"ended1": status} })
	}
	none := Job{Args: []string{"--gpus-per-node=shared"}, Steps: []string{"--gres=none"}}
	session := Job{Client: "salloc", Args: []string{"--gres=gpu:shared"}}
	sharer, array, fails := Job{Args: []string{"--gres=gpu:shared"}}, Job{Args: []string{"--array=0-1"}}, Job{Exit: 3}
	inBoth := Job{Args: []string{"--gres=gpu:shared", "--partition=gpu,whole"}}
	type vars = map[string]string
	const parts = "SLURM_JOB_PARTITION"
	const gpus, rocm, steps = "SLURM_JOB_GPUS", "ROCR_VISIBLE_DEVICES", "SLURM_GRES"
	for name, c := range map[string]struct {
		job           Job
		plain, bridge *seen
		said          string // that the bridge's side refuses the job with
		want          string // kind, or kind and "stated"
	}{
		"the same":                 {Job{}, ran(1, 9), ran(3, 11), "", ""},
		"plain never starts it":    {Job{}, waits(), waits(), "", ""},
		"never starts":             {Job{}, ran(1, 9), waits(), "", kindNever},
		"late":                     {Job{LengthS: 8}, ran(1, 9), ran(20, 28), "", kindLate},
		"fails":                    {Job{}, ran(1, 9), but(func(s *seen) { s.State = "FAILED" }), "", kindState},
		"exit":                     {Job{}, ran(1, 9), but(func(s *seen) { s.Exit = "1:0" }), "", kindExit},
		"killed":                   {Job{}, ran(1, 19), ran(1, 9), "", kindRan},
		"runs again":               {Job{}, ran(1, 9), twice, "", kindRan},
		"fails, and runs again":    {fails, ran(1, 9), twice, "", kindRan + " stated"},
		"CPUs":                     {Job{}, but(func(s *seen) { s.CPUs = "2" }), ran(1, 9), "", kindSize},
		"more nodes":               {spreads, spread, ran(1, 9), "", kindSize + " stated"},
		"GPUs of more nodes":       {twoGPUs, spread, ran(1, 9), "", kindSize + " stated"},
		"as many as it asks for":   {upTo2, spread, ran(1, 9), "", kindSize + " stated"},
		"more nodes than asked":    {fixed, spread, ran(1, 9), "", kindSize + ", " + kindSize},
		"a step doesn't run":       {Job{}, sees(vars{"A": "1"}), ran(1, 9), "", kindStep},
		"another value":            {Job{}, sees(vars{"A": "1"}), sees(vars{"A": "2"}), "", kindEnv},
		"another GPU":              {Job{}, sees(vars{gpus: "1"}), sees(vars{gpus: "0"}), "", ""},
		"steps ask for its GPU":    {Job{}, sees(vars{}), sees(vars{steps: "mps:100"}), "", kindEnv + " stated"},
		"and an instance's":        {Job{}, sees(vars{}), sees(vars{steps: "mps:1"}), "", kindEnv + " stated"},
		"steps ask for another":    {Job{}, sees(vars{}), sees(vars{steps: "gpu:1"}), "", kindEnv},
		"another GPU, for ROCm":    {Job{}, sees(vars{rocm: "1"}), sees(vars{rocm: "0"}), "", ""},
		"more GPUs":                {Job{}, sees(vars{gpus: "1"}), sees(vars{gpus: "0,1"}), "", kindEnv},
		"bound to its GPU's cores": {binds, but(func(s *seen) { s.CPUs = "2" }), ran(1, 9), "", kindSize + " stated"},
		"refused":                  {sharer, ran(1, 9), nil, "x: exit status 1: Invalid", kindRefused},
		"its shorter list":         {inBoth, sees(vars{parts: "gpu,whole"}), sees(vars{parts: "gpu"}), "", kindEnv + " stated"},
		"another partition":        {Job{}, sees(vars{parts: "gpu"}), sees(vars{parts: "whole"}), "", kindEnv},
		"refused with a sentence":  {sharer, ran(1, 9), nil, "exit status 1: slurmbridge: no", kindRefused + " stated"},
		"a part of a GPU, no MPS":  {session, ran(1, 9), alone, "", kindMPS},
		"all of an instance":       {session, ran(1, 9), instance, "", ""},
		"a step fails":             {none, ended("0"), ended("1"), "", kindStep},
		"a step without GPUs":      {none, ended("1"), ended("0"), "", kindStep + " stated"},
		"an array that waits":      {array, ran(1, 9), nil, "", kindNever},
	} {
		c.job.Name = "j1"
		plain, bridge := &result{Jobs: map[string]*seen{"j1": c.plain}}, &result{Refused: map[string]string{"j1": c.said}}
		bridge.Jobs = map[string]*seen{}
		if c.bridge != nil {
			bridge.Jobs["j1"] = c.bridge
		}
		var got []string
		for _, d := range judge(&Case{Sharing: "mps", Jobs: []Job{c.job}}, plain, bridge) {
			kind := d.Kind
			if d.Stated != "" {
				kind += " stated"
			}
			got = append(got, kind)
		}
		must.Equal(t, strings.Join(got, ", "), c.want, name)
	}
}

// The tasks of an array start in the order that they have on plain Slurm.
func TestTasksStartInTheirOrder(t *testing.T) {
	side := func(first, second, third float64) *result {
		return &result{Jobs: map[string]*seen{
			"j1_0": ran(first, first+5), "j1_1": ran(second, second+5),
			"j1_2": ran(third, third+5),
		}}
	}
	c := &Case{Jobs: []Job{{Name: "j1"}}}
	must.Equal(t, len(judge(c, side(1, 6, 11), side(1, 6, 11))), 0)
	got := judge(c, side(1, 6, 11), side(1, 11, 6))
	again := side(1, 11, 6)
	again.Jobs["j1_1"].Restarts = "1"
	for _, d := range append(judge(c, side(1, 6, 11), again), judge(c, again, side(1, 6, 11))...) {
		must.Equal(t, d.Kind == kindOrder, false, "what was requeued starts again")
	}
	alike := []difference{{Job: "j1_0", Kind: "a"}, {Job: "j1_3", Kind: "a"}, {Job: "j2", Kind: "a"}}
	must.Equal(t, len(together(alike)), 2)
	must.Equal(t, got[0].String(), "j1_1   order        starts at 11 s, after j1_2 at 6 s; on plain Slurm before it")
}

// Whole GPUs that others are on are found, and jobs that were put back beside those that they were killed next to.
func TestWholeGPUsInUseAreFound(t *testing.T) {
	on := func(s *seen, places ...string) *seen {
		s.Places = map[int][]string{}
		for i, p := range places {
			s.Places[i] = []string{p}
		}
		return s
	}
	c := &Case{Sharing: "mps"}
	kinds := func(a, b *seen) (out []string) {
		for _, d := range judge(c, &result{}, &result{Jobs: map[string]*seen{"j1": a, "j2": b}}) {
			out = append(out, d.Job+" "+d.Kind)
		}
		return out
	}
	part := on(ran(0, 60), "n1:0")
	part.Gres = "gres:mps:50"
	must.Equal(t, kinds(on(ran(10, 30), "n1:0"), part), []string{"j1 " + kindInUse})
	must.Equal(t, kinds(on(ran(10, 30), "n1:1"), part), nil)
	again := on(ran(30, 40), "n1:0", "n1:0")
	again.Gres, again.Began = part.Gres, 1
	must.Equal(t, kinds(again, part), []string{"j1 " + kindBeside})
	part.Start = 20
	must.Equal(t, kinds(again, part), nil, "it came after the other one was killed")
	part.Start = 0
	c.Jobs = []Job{{Name: "j1", Args: []string{"--gres=gpu:shared"}}}
	must.Equal(t, kinds(on(ran(10, 30), "n1:0"), part), nil, "a sharer whose shares Slurm doesn't show")
}

// A job that starts elsewhere than it prefers is found where a GPU that it prefers was idle.
func TestAPreferredGPUWasIdle(t *testing.T) {
	on := func(node string) *seen {
		s := ran(1, 9)
		s.Where, s.Places = node, map[int][]string{0: {node + ":0"}}
		return s
	}
	c := &Case{
		Nodes: []Node{{Types: []string{"v100"}, More: "Features=fast"}, {Types: []string{"v100"}, More: "Features=slow"}},
		Jobs:  []Job{{Name: "j1", Args: []string{"--prefer=fast"}}},
	}
	plain, bridge := &result{Jobs: map[string]*seen{"j1": on("n1")}}, &result{Jobs: map[string]*seen{"j1": on("n2")}}
	must.Equal(t, judge(c, plain, bridge)[0].Kind, kindPrefer)
	bridge.Jobs["j2"] = on("n1")
	must.Equal(t, len(judge(c, plain, bridge)), 0)
}

// What MIG instances, whole GPUs beside shares and reservations that draw jobs into them make of jobs is stated.
func TestClusters(t *testing.T) {
	ended := func(status string) *result {
		s := ran(1, 9)
		s.Steps = map[string]string{"ended1": status}
		return &result{Jobs: map[string]*seen{"j1": s}}
	}
	session := []Job{{Name: "j1", Client: "salloc", Args: []string{"--gres=gpu:shared"}}}
	for _, instances := range [][]string{nil, {"1g.5gb"}} {
		d := judge(&Case{Jobs: session, Instances: instances}, ended("0"), ended("1"))
		must.Equal(t, len(d), 1)
		must.Equal(t, d[0].Stated != "", instances != nil)
	}
	late := &result{Jobs: map[string]*seen{}}
	var jobs []Job
	for i := range 3 {
		name := fmt.Sprint("j", i+1)
		late.Jobs[name] = ran(20, 28)
		jobs = append(jobs, Job{Name: name, Args: []string{"--gres=gpu:shared"}})
	}
	jobs[1].Args = []string{"--gres=gpu:1"} // waits
	soon := &result{Jobs: map[string]*seen{"j1": ran(1, 9), "j2": ran(1, 9)}}
	for conf, stated := range map[string]bool{"PreemptType=preempt/qos": true, "PreemptMode=REQUEUE": false} {
		d := judge(&Case{Jobs: jobs, Conf: []string{conf}}, soon, late)
		must.Equal(t, d[0].Stated != "", stated, conf)
	}
	for _, unshared := range [][]int{nil, {1}} {
		c := &Case{Jobs: jobs, Nodes: []Node{{Unshared: unshared}}, Settings: []string{"sharers_only: []"}}
		d := judge(c, soon, late)
		must.Equal(t, d[0].Kind, kindLate)
		must.Equal(t, d[0].Stated != "", unshared != nil)
	}
}

// Of jobs that waited, and not for a GPU that they might have shared, none is expected to have shared one.
func TestWhoMightHaveShared(t *testing.T) {
	late := &result{Jobs: map[string]*seen{}}
	var jobs []Job
	for i := range 4 {
		name := fmt.Sprint("j", i+1)
		late.Jobs[name] = ran(20, 28)
		jobs = append(jobs, Job{Name: name, Args: []string{"--gres=gpu:shared"}})
	}
	late.Jobs["j5"], late.Jobs["j6_0"] = ran(30, 38), ran(30, 38)
	sockets := Node{Types: []string{"v100", "v100"}, More: "Sockets=2 CoresPerSocket=4"}
	bySocket := []string{"SelectTypeParameters=CR_Socket_Memory"}
	for name, c := range map[string]*Case{
		"they waited for a GPU":     {Before: []string{"scontrol create ReservationName=res Flags=FLEX"}},
		"one job has two GPUs":      {Jobs: []Job{{Name: "j5", Args: []string{"--gres=gpu:2"}}}},
		"a reservation draws all":   {Before: []string{"scontrol create ReservationName=res Flags=MAGNETIC"}},
		"a partition was closed":    {Events: []Event{{16, "scontrol update PartitionName=gpu State=UP"}}},
		"each job takes a socket":   {Nodes: []Node{sockets}, Conf: bySocket},
		"sockets of one core":       {Nodes: []Node{{Types: sockets.Types}}, Conf: bySocket},
		"tasks that have two GPUs":  {Jobs: []Job{{Name: "j6", Args: []string{"--gres=gpu:2", "--array=0"}}}},
		"a partition opened before": {Events: []Event{{5, "scontrol update PartitionName=gpu State=UP"}}},
	} {
		c.Sharing, c.Jobs = "mps", append(c.Jobs, jobs...)
		expected := name == "they waited for a GPU" || name == "sockets of one core" || name == "a partition opened before"
		must.Equal(t, len(judge(c, late, late)) > 0, expected, name)
	}
}

// A partition is of whole nodes by its own line, or by the DEFAULT line before it.
func TestOfWholeNodes(t *testing.T) {
	c := &Case{Conf: []string{
		"PartitionName=a Nodes=ALL", "PartitionName=b Nodes=ALL OverSubscribe=EXCLUSIVE",
		"PartitionName=DEFAULT OverSubscribe=EXCLUSIVE", "PartitionName=c OverSubscribe=NO",
	}}
	var whole []string
	for _, p := range []string{"a", "b", "c", "gpu"} {
		if c.ofWholeNodes(p) {
			whole = append(whole, p)
		}
	}
	must.Equal(t, whole, []string{"b", "gpu"})
}

// A job whose event met it in different states isn't compared.
func TestEventsApart(t *testing.T) {
	c := &Case{Jobs: []Job{{Name: "j1"}}}
	plain := &result{Jobs: map[string]*seen{"j1": ran(1, 9)}, Met: map[string][]string{"j1": {"RUNNING, taken"}}}
	bridge := &result{Jobs: map[string]*seen{"j1": waits()}, Met: map[string][]string{"j1": {"PENDING, taken"}}}
	must.Equal(t, len(judge(c, plain, bridge)), 0)
}

func TestASeedDrawsOneCase(t *testing.T) {
	for text, want := range map[string][]uint64{"7": {7}, "1..3": {1, 2, 3}, "9,1..2": {9, 1, 2}} {
		must.Equal(t, must.Get(parseSeeds(text))(t), want)
	}
	for _, text := range []string{"", "a", "5..3", "1..", "1,", "0..18446744073709551615"} {
		must.Fail(t, must.Err(parseSeeds(text)), "", text)
	}
}

// What is taken out of a case is gone with what needs it, and the case itself stays.
func TestWhatIsTakenOutIsGone(t *testing.T) {
	c := draw(4, "22.05.8", false, nil)
	c.Jobs[2].Args = append(c.Jobs[2].Args, "--dependency=afterany:{j1}")
	before := fmt.Sprint(c)
	jobs, rest := c.parts("j3")
	must.Equal(t, len(jobs), len(c.Jobs)-1)
	small := c.without(append(jobs, rest...))
	must.Equal(t, len(small.Jobs), 1)
	must.Equal(t, small.Jobs[0].Args, []string{"--time=" + c.Jobs[2].value("--time")})
	must.Equal(t, fmt.Sprint(c), before)
}

// What an operator closes is what opens again.
func TestOneNodeInARow(t *testing.T) {
	for seed := range uint64(300) {
		c := draw(seed, "22.05.8", false, nil)
		if len(c.Events) < 2 {
			continue
		}
		closed, opened := strings.Fields(c.Events[0].Command), strings.Fields(c.Events[1].Command)
		if closed[1] == "update" && closed[2] != opened[2] {
			t.Errorf("seed %d: %v", seed, c.Events)
		}
	}
}
