package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// A mean leaves out the looks that still show the time before.
func TestMeanLeavesTheBeginningOut(t *testing.T) {
	var rows []sampled
	want := sampled{
		Use:   rlcore.Use{GPU: 0.5, Core: 0.25, MemMiB: 100, PCIeMBps: 10},
		ByPID: map[int]float64{7: 0.5},
	}
	for i := range 13 {
		r := want
		r.T = float64(i)
		if i < 2 {
			r.GPU, r.MemMiB = 1, 900
		}
		rows = append(rows, r)
	}
	if diff := cmp.Diff(want, meanOf(rows), cmpopts.EquateApprox(0, 1e-9)); diff != "" {
		t.Error(diff)
	}
	must.Equal(t, meanOf(nil).GPU, 0, "of none")
}

// A program that doesn't end on request is killed, and one that fails or isn't there says why.
func TestStubbornProgram(t *testing.T) {
	t.Parallel()
	for script, says := range map[string]string{
		`trap '' TERM; echo '{"work":0}'; while :; do sleep 0.05; done`: "isn't ready",
		"echo nonsense; echo why >&2; exit 7":                           "it has ended why",
		"":                                                              "no such file",
	} {
		s := &stage{
			check:  &check{card: &card{}, pace: 1, duration: time.Second},
			client: []string{"sh", "-c", script, "sh"},
		}
		if script == "" {
			s.client = []string{"/nonexistent"}
		}
		_, err := s.try(t.Context(), &Kernel{Name: "a", Duty: 1})
		for range 2 { // as a situation and its end do
			s.dismiss(s.clients...)
		}
		must.Fail(t, err, says, script)
	}
}
