package history

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// verdict is what was concluded of a run, in words: the harm that it came to; ours = it isn't the job's own doing;
// fault = its process may have broken the MPS server; whom it blames; and what becomes of it.
func verdict(r *Run) string {
	var words []string
	o := r.Outcome
	for _, h := range r.Harm() {
		words = append(words, string(h))
	}
	for _, x := range []struct {
		word string
		is   bool
	}{
		{"ours", o.Ours},
		{"fault", o.Fault},
		{"unserved", o.Unserved},
		{"learned", o.Learned},
		{"cleared", o.Cleared},
		{"can't run under MPS", o.NoMPS},
		{fmt.Sprintf("held %g s", o.HeldS), o.HeldS > 0},
	} {
		if x.is {
			words = append(words, x.word)
		}
	}
	for _, app := range o.Blamed {
		words = append(words, "blames "+app.App)
	}
	return strings.Join(words, ", ")
}

// Who ended badly, and why, is concluded from what was there.
func TestVerdictOnEachWayToEnd(t *testing.T) {
	type situation struct {
		name string
		of   *Judgement
		set  func(j *Judgement)
		want string
	}
	// there has all co-runners stay to the end of a run that failed then.
	there := func(j *Judgement) *Judgement {
		j.Run.Ending.How.Start, j.Run.Ending.How.End = at(0), at(10)
		for i := range j.Run.CoRunners {
			j.Run.CoRunners[i].AtEnd = true
		}
		return j
	}
	// killed is a run that failed so long after its neighbour 3 had ended; nothing else is a reason.
	killed := func(state string, after time.Duration) *Judgement {
		j := there(ranOut("FAILED"))
		j.FailsAlone = true
		j.Run.CoRunners[1].How = job.Description{State: state, End: at(10).Add(-after)}
		return j
	}
	// fell is a run that fell with its MPS server, broken by a process of its own or of some neighbours.
	fell := func(state string, own bool, by ...int) *Judgement {
		j := there(ranOut(state))
		j.Run.MPSFault, j.Run.Faulted = true, own
		for _, i := range by {
			j.Run.CoRunners[i].Faulted = true
		}
		return j
	}
	// moment is a run that failed in the same moment as its neighbour 2.
	moment := func() *Judgement {
		j := there(ranOut("FAILED"))
		j.FailsAlone, j.Run.CoRunners = true, j.Run.CoRunners[:1]
		j.Run.CoRunners[0].How = j.Run.Ending.How
		return j
	}
	// memory is a run that failed beside one other; 2,000 MiB are known of each.
	memory := func(peak float64) *Judgement {
		j := there(ranOut("FAILED"))
		known := &rlcore.Profile{DurationS: 360, Series: []rlcore.Use{{MemMiB: 2000}}}
		j.Run.Profile, j.Run.Devices, j.Run.PeakMemMiB = known, []gpuprof.GPU{{MemMiB: 12196}}, peak
		j.Run.CoRunners = j.Run.CoRunners[:1]
		j.Run.CoRunners[0].Profile = known
		return j
	}
	// soon is a run that failed after so many seconds at its application's first run with a part of a GPU's shares.
	soon := func(after float64) *Judgement {
		return &Judgement{
			Run: &Run{
				App: "reader", User: "ann", Start: at(0), End: at(after / 60),
				Ending: Ending{How: job.Description{State: "FAILED"}, Member: &job.Member{Shares: 99}},
			},
			Spec: &rlcore.GPUSpec{},
		}
	}
	// again is the run of such a job without MPS.
	again := func() *Judgement {
		j := soon(4)
		j.Run.Ending.How.State, j.Alone, j.Unserved, j.Run.Ending.Member.Shares = "COMPLETED", true, true, 100
		return j
	}
	// whole is a complete run alone.
	whole := func(state string) *Judgement {
		j := ranOut(state)
		j.Run.Complete, j.Run.CoRunners = true, nil
		return j
	}
	alone := func(j *Judgement) { j.Run.CoRunners = nil }
	beside := []CoRunner{{Ref: "8", App: "b", AtEnd: true}}
	for _, c := range []situation{
		// Out of time while it shared: harm if alone it would have ended before, by those that slowed it.
		{"at its limit", ranOut("TIMEOUT"), nil, "timeout, ours, blames long"},
		{"at its deadline", ranOut("DEADLINE"), nil, "deadline, ours, blames long"},
		{
			"a limit that was raised, too late", ranOut("TIMEOUT"),
			func(j *Judgement) { j.Run.Ending.LimitS, j.Run.Ending.LentS = 600, 200 }, "timeout, ours, blames long",
		},
		{
			"it had done its own limit's work", ranOut("TIMEOUT"),
			func(j *Judgement) { j.Run.Ending.LimitS, j.Run.Ending.LentS = 660, 360 }, "",
		},
		{"it takes as long alone", ranOut("TIMEOUT"), func(j *Judgement) { j.Run.Profile.DurationS = 600 }, ""},
		{"it takes as long alone at times", ranOut("TIMEOUT"), func(j *Judgement) { j.Run.Profile.DurationSD = 240 }, ""},
		{"its deadline was too early alone", ranOut("DEADLINE"), func(j *Judgement) { j.Run.Ending.Deadline = at(5) }, ""},
		{"unknown application", ranOut("TIMEOUT"), func(j *Judgement) { j.Run.Profile = nil }, ""},
		{"no poll showed it", ranOut("TIMEOUT"), func(j *Judgement) { j.Run.Ending.RunState = RunState{} }, ""},
		{"cancelled", ranOut("CANCELLED"), nil, ""},
		{"out of the node's memory", ranOut("OUT_OF_MEMORY"), nil, "oom"},
		{"out of time alone", ranOut("TIMEOUT"), alone, ""},
		{"out of time alone once more", whole("TIMEOUT"), func(j *Judgement) { j.Alone = true }, "learned, cleared"},

		// A client that Slurm kills may break the others of its MPS server: no application is to blame.
		{"as a neighbour was cancelled", killed("CANCELLED", 0), nil, "oom, ours"},
		{"soon after one ran out of time", killed("TIMEOUT", 31*time.Second), nil, "oom, ours"},
		{"as one was preempted", killed("PREEMPTED", -time.Second), nil, "oom, ours"},
		{"as one ran out of memory", killed("OUT_OF_MEMORY", 0), nil, "oom, ours"},
		{"long after one was cancelled", killed("CANCELLED", time.Minute), nil, ""},
		{"long before", killed("CANCELLED", -time.Minute), nil, ""},
		{"as one ended well", killed("COMPLETED", 0), nil, ""},
		{"without MPS", killed("CANCELLED", 0), func(j *Judgement) { j.Run.WithoutMPS = true }, ""},

		// With its MPS server: it runs again in any case; who may have broken the server is blamed, or stays alone.
		{"nobody knows whose fault it was", fell("FAILED", false), nil, "oom, ours, fault, blames long, blames brief"},
		{"its own fault", fell("FAILED", true), nil, "oom, ours, fault"},
		{"a neighbour's", fell("FAILED", false, 1), nil, "oom, ours, blames brief"},
		{"its own and a neighbour's", fell("FAILED", true, 0), nil, "oom, ours, fault"},
		{"an unknown application's", fell("FAILED", false, 2), nil, "oom, ours"},
		{
			"what made it slow is another question", fell("TIMEOUT", false), nil,
			"timeout, ours, fault, blames long, blames brief",
		},
		{"its own fault, out of time", fell("TIMEOUT", true), nil, "timeout, ours, fault, blames long, blames brief"},
		{"a neighbour's, out of time", fell("TIMEOUT", false, 1), nil, "timeout, ours, blames long, blames brief"},

		// Together with a neighbour: both were clients of a server that broke.
		{"both", moment(), nil, "oom, ours, fault, blames long"},
		{
			"the neighbour soon after", moment(),
			func(j *Judgement) { j.Run.CoRunners[0].How.End = at(10).Add(SameMoment) },
			"oom, ours, fault, blames long",
		},
		{
			"the neighbour later", moment(),
			func(j *Judgement) { j.Run.CoRunners[0].How.End = at(10).Add(10 * time.Second) }, "",
		},
		{"the neighbour ended well", moment(), func(j *Judgement) { j.Run.CoRunners[0].How.State = "COMPLETED" }, ""},
		{"tasks that began together", moment(), func(j *Judgement) { j.Run.CoRunners[0].App = "md" }, ""},
		{
			"tasks that began apart", moment(),
			func(j *Judgement) { j.Run.CoRunners[0].App, j.Run.CoRunners[0].How.Start = "md", at(5) },
			"oom, ours, fault, blames md",
		},
		{"where there was no MPS", moment(), func(j *Judgement) { j.Run.WithoutMPS = true }, ""},
		{"nobody knows when it ended", moment(), func(j *Judgement) { j.Run.CoRunners[0].How.End = time.Time{} }, ""},

		// It runs again by itself only if the failure isn't its own doing; its neighbours are suspected anyhow.
		{"its own error, perhaps", memory(0), nil, "oom, blames long"},
		{
			"it was tried with less", memory(0),
			func(j *Judgement) { j.Run.Ending.Member = &job.Member{Tried: true, MemMiB: 100} }, "oom, ours",
		},
		{"memory was full", memory(12000), nil, "oom, ours, blames long"},
		{"more memory than known", memory(6000), nil, "oom, ours, blames long"},

		// What fails at once, and for the first time under MPS, runs again without, and stays so if that ended well.
		{"at once", soon(4), nil, "oom, ours, unserved"},
		{
			"at once, beside another", soon(4), func(j *Judgement) { j.Run.Ending.Member.Shares, j.Run.CoRunners = 50, beside },
			"oom, ours, unserved, blames b",
		},
		{"later", soon(60), nil, ""},
		{"with all shares", soon(4), func(j *Judgement) { j.Run.Ending.Member.Shares = 100 }, ""},
		{"in no group", soon(4), func(j *Judgement) { j.Run.Ending.Member = nil }, ""},
		{"where jobs take turns", soon(4), func(j *Judgement) { j.Spec.Sharing = contention.TimeSlice.Name }, ""},
		{"at once, without MPS", soon(4), func(j *Judgement) { j.Run.WithoutMPS = true }, ""},
		{"it has ended well under MPS", soon(4), func(j *Judgement) { j.Served = true }, ""},
		{"it has failed alone", soon(4), func(j *Judgement) { j.FailsAlone = true }, ""},
		{"it is the second run", soon(4), func(j *Judgement) { j.Alone = true }, "cleared"},
		{"its application isn't known", soon(4), func(j *Judgement) { j.Run.App = "" }, ""},
		{"it was cancelled", soon(4), func(j *Judgement) { j.Run.Ending.How.State = "CANCELLED" }, ""},
		{
			"the server failed, beside one", soon(4),
			func(j *Judgement) { j.Run.MPSFault, j.Run.CoRunners = true, beside }, "oom, ours, fault, blames b",
		},
		{"then well alone", again(), nil, "can't run under MPS"},
		{"then failed alone", again(), func(j *Judgement) { j.Run.Ending.How.State = "FAILED" }, "cleared"},
		{"others of it ended well under MPS meanwhile", again(), func(j *Judgement) { j.Served = true }, ""},
		{"not after that", again(), func(j *Judgement) { j.Unserved = false }, ""},

		// Alone under MPS with its server, which plain Slurm would not have given it.
		{"the server of a job alone failed", soon(60), func(j *Judgement) { j.Run.MPSFault = true }, "oom, ours"},
		{"by a process of its own", soon(60), func(j *Judgement) { j.Run.MPSFault, j.Run.Faulted = true, true }, ""},
		{"its application fails alone, too", soon(60), func(j *Judgement) { j.Run.MPSFault, j.FailsAlone = true, true }, ""},

		// Whole runs alone become part of a profile, those that failed once they have lasted for minutes; of a forgotten one
		// its length says how it ended.
		{"it ended well", whole("COMPLETED"), nil, "learned"},
		{"it failed", whole("FAILED"), nil, "learned"},
		{"it failed at once", whole("FAILED"), func(j *Judgement) { j.Run.End = at(1) }, ""},
		{"its record is cut", whole("COMPLETED"), func(j *Judgement) { j.Run.Complete = false }, ""},
		{"it shared", whole("COMPLETED"), func(j *Judgement) { j.Run.CoRunners = []CoRunner{{Ref: "2"}} }, ""},
		{"forgotten, nearly as long", whole(""), func(j *Judgement) { j.Run.End = at(5) }, "learned"},
		{"forgotten, and hardly half so", whole(""), func(j *Judgement) { j.Run.End = at(2) }, ""},

		// Kept waiting for longer than it may be.
		{"299 s of 300", ranOut("COMPLETED"), func(j *Judgement) { j.MaxDelayS, j.Run.Ending.DelayedS = 300, 299 }, ""},
		{
			"310 s of 300", ranOut("COMPLETED"), func(j *Judgement) { j.MaxDelayS, j.Run.Ending.DelayedS = 300, 310 },
			"held, held 10 s",
		},
		{"past its lease", ranOut("COMPLETED"), func(j *Judgement) { j.Run.Ending.PastLeaseS = 140 }, "held, held 140 s"},
	} {
		if c.set != nil {
			c.set(c.of)
		}
		o := c.of.Judge(nil)
		c.of.Run.Outcome = &o
		must.Equal(t, verdict(c.of.Run), c.want, c.name)
	}
	// The neighbour that is to blame is named.
	for _, c := range []struct {
		of  *Judgement
		why string
	}{
		{fell("FAILED", false, 1), "a process of job 3 faulted, and with it the MPS server they shared"},
		{moment(), "it failed in the same moment as job 2, which shared its GPU: a fault ends all clients of an MPS server"},
		{killed("CANCELLED", 0), "it failed when Slurm ended job 3 (CANCELLED), which shared its GPU: a client that is " +
			"killed may break the MPS server's others"},
	} {
		must.Equal(t, c.of.Judge(nil).Suspect, c.why)
	}
}
