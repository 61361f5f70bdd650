package main

import (
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

func TestSteadyLeavesTheEndsOut(t *testing.T) {
	rec := &gpuprof.Record{PeriodS: 0.5}
	for i := range 8 {
		u := rlcore.Use{GPU: 0.5, Core: 0.25, MemMiB: 100, PCIeMBps: 10}
		if i < 2 || i == 7 {
			u = rlcore.Use{GPU: 1, MemMiB: 900}
		}
		rec.Series = append(rec.Series, u)
	}
	if u := steady(rec); u != (rlcore.Use{GPU: 0.5, Core: 0.25, MemMiB: 100, PCIeMBps: 10}) {
		t.Errorf("%+v", u)
	}
	rec.Series = rec.Series[:2]
	if u := steady(rec); u.GPU != 1 {
		t.Errorf("too short to cut: %+v", u)
	}
	if u := steady(&gpuprof.Record{}); u != (rlcore.Use{}) {
		t.Errorf("no series: %+v", u)
	}
}

// A program that doesn't end on request is killed, and one that fails says why.
func TestStubbornProgram(t *testing.T) {
	t.Parallel()
	for script, says := range map[string]string{
		`trap '' TERM; echo '{"work":0}'; while :; do sleep 0.05; done`: "isn't ready",
		"echo nonsense; echo why >&2; exit 7":                           "it has ended why",
	} {
		b := &bench{service: newService(t.TempDir(), "", &card{}), program: []string{"sh", "-c", script}}
		if _, err := b.try(t.Context(), []*Kernel{{Name: "a", Duty: 1}}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", script, err)
		}
	}
}
