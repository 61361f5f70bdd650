package slurm_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Many updates at once: each is made or refused as it would be alone, whatever is in it.
func TestUpdateAll(t *testing.T) {
	cluster, c := live(t, slurmtest.Options{})
	ran := map[string]int{}
	var mu sync.Mutex
	c.Observe = func(command string, _ time.Duration, _ error) {
		mu.Lock()
		defer mu.Unlock()
		ran[command]++
	}
	n1, nowhere := "n1", "nowhere"
	gres := func(n int) *string { s := fmt.Sprintf("mps:%d", n); return &s }
	said := func(s string) *string { return &s }
	var all []job.Update
	want := map[string]string{} // what the comments say
	for i := range 70 {
		ref := submit(t, cluster, "--hold", "--gres=mps:100")
		text := fmt.Sprintf("slurmbridge: [mps:%d on n1, was mps:100] isn't alone", 10+i)
		switch i % 10 {
		case 7:
			text = `slurmbridge: a "quoted" word, and an odd "`
		case 8:
			text = "slurmbridge: größer als ein Byte"
		case 9:
			text = "one"
		}
		want[ref] = text
		all = append(all, job.Update{Jobs: []string{ref}, Gres: gres(10 + i%40), ReqNodes: &n1, AdminComment: &text})
	}
	array := submit(t, cluster, "--hold", "--array=0-5", "--gres=mps:100")
	tasks := []string{array + "_0", array + "_1", array + "_3"}
	all = append(all, job.Update{Jobs: tasks, Gres: gres(33), ReqNodes: &n1, AdminComment: said("slurmbridge: tasks of an array")})
	gone := job.Update{Jobs: []string{"9999"}, Gres: gres(5)}
	bad := job.Update{Jobs: []string{array + "_4"}, Gres: gres(44), ReqNodes: &nowhere}
	hostile := job.Update{Jobs: []string{array + "_5"}, Gres: said("mps:1 JobId=2")}
	lost := job.Update{Jobs: []string{array + "_2", array + "_99"}, Gres: gres(22), ReqNodes: &n1}
	list := job.Update{Jobs: []string{all[0].Jobs[0], "9998", all[1].Jobs[0]}, AdminComment: said("slurmbridge: both")}
	n := len(all)
	all = append(all, gone, bad, hostile, lost, list)
	errs := c.UpdateAll(t.Context(), all)
	if ran["scontrol update"] != 14 || ran["scontrol updates"] < 2 || ran["scontrol updates"] > 8 {
		t.Errorf("commands: %v; those with quotes inside or beyond ASCII need one each", ran)
	}
	clear(ran)
	again := c.UpdateAll(t.Context(), []job.Update{{Jobs: tasks, ReqNodes: &n1}})
	if again[0] != nil || ran["scontrol updates"] != 1 || ran["scontrol update"] != 0 {
		t.Errorf("three jobs of one update, each for its node: %v, commands: %v", again[0], ran)
	}
	for i, err := range errs[:n] {
		if err != nil {
			t.Errorf("update %d, of %v: %v", i, all[i].Jobs, err)
		}
	}
	for i, kind := range []error{job.ErrNoJob, job.ErrRefused, job.ErrRefused, job.ErrNoJob, job.ErrNoJob} {
		if !errors.Is(errs[n+i], kind) {
			t.Errorf("update of %v: %v, want %v", all[n+i].Jobs, errs[n+i], kind)
		}
	}
	want[all[0].Jobs[0]], want[all[1].Jobs[0]] = "slurmbridge: both", "slurmbridge: both"
	_, jobs := look(t, c)
	var refs []string
	for i := range 70 {
		ref := all[i].Jobs[0]
		refs = append(refs, ref)
		if j := jobs[ref]; j == nil || j.Request.Count != 10+i%40 || j.ReqNodes != "n1" {
			t.Errorf("job %s: %+v", ref, j)
		}
	}
	there, err := c.Describe(t.Context(), refs)
	if err != nil {
		t.Fatal(err)
	}
	for ref, text := range want {
		if got := there[ref].AdminComment; got != text {
			t.Errorf("job %s says %q, want %q", ref, got, text)
		}
	}
	for task, count := range map[string]int{"_0": 33, "_1": 33, "_2": 22, "_3": 33, "_4": 100, "_5": 100} {
		if j := jobs[array+task]; j == nil || j.Request.Count != count {
			t.Errorf("task %s: %+v", task, j)
		}
	}
}

// BenchmarkUpdates compares many updates with one command each.
func BenchmarkUpdates(b *testing.B) {
	cluster, c := live(b, slurmtest.Options{})
	n1 := "n1"
	var all []job.Update
	for range 60 {
		ref := submit(b, cluster, "--hold", "--gres=mps:100")
		text := "slurmbridge: [mps:50 on n1, was mps:100]"
		gres := "mps:50"
		all = append(all, job.Update{Jobs: []string{ref}, Gres: &gres, ReqNodes: &n1, AdminComment: &text})
	}
	b.Run("one by one", func(b *testing.B) {
		for b.Loop() {
			for _, u := range all {
				if err := c.Update(b.Context(), u); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("all at once", func(b *testing.B) {
		for b.Loop() {
			if err := errors.Join(c.UpdateAll(b.Context(), all)...); err != nil {
				b.Fatal(err)
			}
		}
	})
}
