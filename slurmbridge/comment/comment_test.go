package comment

import (
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// An adopted job whose partners have ended still says who had it share, and how its owner opts out.
func TestAnAdoptedJobThatIsAlone(t *testing.T) {
	tr := tracker.New()
	tr.Add(&job.Group{ID: 1, Members: []job.Member{
		{Ref: "7", WasGres: "gpu:1", Rule: "partition gpu"}, {Ref: "8", WasGres: "mps:100"},
	}}, map[string]tracker.Membership{})
	in := &plan.Input{Snap: &job.Snapshot{}, Tracker: tr}
	card := func(id, ref string) rlcore.GPU {
		return rlcore.GPU{ID: id, Node: "n1", Running: []rlcore.Running{{Job: rlcore.Job{ID: ref}}}}
	}
	p := &job.Plan{Running: &rlcore.State{GPUs: []rlcore.GPU{card("n1:0", "7"), card("n1:1", "8")}}}
	texts := Texts(p, in, func(string) string { return "together" })
	const why = "alone now; by a rule of the site (partition gpu); --comment=share:no opts out"
	must.Equal(t, strings.HasSuffix(texts["7"], "on n1 gpu 0, "+why), true, texts["7"])
	must.Equal(t, strings.HasSuffix(texts["8"], "on n1 gpu 1, alone now"), true, texts["8"])
}
