package tracker_test

import (
	"fmt"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// BenchmarkAdd adds 4,000 groups of three, as a plan for as many GPUs makes them.
func BenchmarkAdd(b *testing.B) {
	const groups = 4000
	for b.Loop() {
		t := tracker.New()
		memberships := t.Memberships()
		for i := range groups {
			g := &job.Group{ID: int64(i), State: job.Preparing}
			for k := range 3 {
				g.Members = append(g.Members, job.Member{Ref: fmt.Sprint(3*i + k), State: job.MemberPrepared})
			}
			t.Add(g, memberships)
		}
	}
}

// A member of a group that joins another one leaves the first, whichever of the groups a plan has added.
func TestAMemberIsInOneGroup(t *testing.T) {
	tr := tracker.New()
	memberships := tr.Memberships()
	for id := range 3 {
		tr.Add(&job.Group{ID: int64(id), Members: []job.Member{{Ref: "1", State: job.MemberPrepared}}}, memberships)
	}
	for id := range 2 {
		must.Equal(t, tr.Groups[int64(id)].Members[0].State, job.MemberMoved, "in group %d", id)
	}
	must.Equal(t, tr.Memberships()["1"].Group.ID, 2, "its group")
}
