package contrib

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/slurmtest"
)

func TestJobSubmit(t *testing.T) {
	c := slurmtest.New(t, slurmtest.Options{Lua: "job_submit.lua", Nodes: 2})
	ctx := context.Background()
	gate, err := c.Submit(ctx, "", "true", "--hold")
	if err != nil {
		t.Fatal(err)
	}
	first, err := c.Submit(ctx, "nobody", "true", "--hold")
	if err != nil {
		t.Fatal(err)
	}
	fresh := func(ok bool) {
		t.Helper()
		expires := time.Now().Add(time.Hour)
		if !ok {
			expires = time.Now().Add(-time.Second)
		}
		text := fmt.Sprintf("job=%s\nexpires=%d\ngres=mps\nunits=100\n", gate, expires.Unix())
		if err := os.WriteFile(c.GateFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// "" = refused. gres is what the job asks for in the end, without its prefix.
	for _, k := range []struct {
		fresh bool
		args  []string
		gres  string
		dep   string
		says  string
	}{
		{true, []string{"--gres=gpu:shared"}, "mps:100", "after:GATE(unfulfilled)", ""},
		{true, []string{"--gres=gpu:shared:1"}, "mps:100", "after:GATE(unfulfilled)", ""},
		{true, []string{"--gpus=shared"}, "mps:100", "after:GATE(unfulfilled)", ""},
		{true, []string{"--gpus=shared:1"}, "mps:100", "after:GATE(unfulfilled)", ""},
		{true, []string{"--gpus-per-node=shared"}, "mps:100", "after:GATE(unfulfilled)", ""},
		{true, []string{"--gres=gpu:shared", "--dependency=afterany:FIRST"}, "mps:100", "afterany:FIRST(unfulfilled),after:GATE(unfulfilled)", ""},
		{true, []string{"--gres=gpu:shared", "--dependency=afterany:FIRST?afterok:FIRST"}, "mps:100", "afterany:FIRST(unfulfilled)?afterok:FIRST(unfulfilled)", ""},
		{false, []string{"--gres=gpu:shared"}, "mps:100", "(null)", ""},
		{true, []string{"--gres=gpu:titanxp:1"}, "gpu:titanxp:1", "(null)", ""},
		{true, []string{"--gres=mps:30"}, "mps:30", "(null)", ""},
		{true, []string{"--comment=gpu:shared"}, "", "(null)", ""},
		{true, []string{"--gres=gpu:shared:3"}, "", "", "shares one GPU"},
		{true, []string{"--gpus=shared:2"}, "", "", "shares one GPU"},
		{true, []string{"--gres=gpu:shared,gpu:titanxp:1"}, "", "", "together with"},
		{true, []string{"--gres=gpu:shared", "--nodes=2"}, "", "", "on one node"},
	} {
		fresh(k.fresh)
		args := append([]string{"--hold"}, k.args...)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "FIRST", first)
		}
		id, err := c.Submit(ctx, "nobody", "true", args...)
		if k.says != "" {
			if err == nil || !strings.Contains(err.Error(), k.says) {
				t.Errorf("%v: %v, want a sentence with %q", k.args, err, k.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%v: %v", k.args, err)
			continue
		}
		j, err := c.Job(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.TrimPrefix(strings.TrimPrefix(j["TresPerNode"], "gres:"), "gres/")
		want := strings.NewReplacer("GATE", gate, "FIRST", first).Replace(k.dep)
		if got != k.gres || j["Dependency"] != want || j["TresPerJob"] != "" {
			t.Errorf("%v: %q %q and per job %q; want %q %q", k.args, got, j["Dependency"], j["TresPerJob"], k.gres, want)
		}
	}
	text, err := os.ReadFile(c.WakeFile)
	if n := strings.Count(string(text), "\n"); err != nil || n != 8 {
		t.Errorf("%d lines in the wake file, %v; want one for each of 8 shared jobs", n, err)
	}
	// A gate file of nonsense, and none: the job passes with a whole GPU's shares.
	for _, text := range []string{"job=1;rm -rf\nexpires=zzz\n\x00\xff", "", "job=\nexpires=99999999999"} {
		if err := os.WriteFile(c.GateFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		id, err := c.Submit(ctx, "nobody", "true", "--hold", "--gres=gpu:shared")
		if err != nil {
			t.Fatal(err)
		}
		if j, err := c.Job(ctx, id); err != nil || j["Dependency"] != "(null)" || !strings.HasSuffix(j["TresPerNode"], "mps:100") {
			t.Errorf("gate file %q: %q %q %v", text, j["TresPerNode"], j["Dependency"], err)
		}
	}
}
