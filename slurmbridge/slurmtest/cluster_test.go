package slurmtest

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

func TestOneGPU(t *testing.T) {
	c := New(t, Options{})
	ctx := context.Background()
	whole, err := c.Submit(ctx, "nobody", "echo gpu=$CUDA_VISIBLE_DEVICES", "--gres=gpu:1")
	if err != nil {
		t.Fatal(err)
	}
	half, err := c.Submit(ctx, "games", "echo share=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "--gres=mps:50")
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{whole: "gpu=0", half: "share=50"} {
		if s, ok := c.WaitState(ctx, 30*time.Second, id, "COMPLETED"); !ok {
			t.Fatalf("job %s is %s", id, s)
		}
		out, err := os.ReadFile(c.Path("out", id+".out"))
		if err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("job %s printed %q, %v; want %q", id, out, err, want)
		}
	}
	dir := c.Dir
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s is still there", dir)
	}
}

func TestTwoClustersAndShards(t *testing.T) {
	ctx := context.Background()
	a := New(t, Options{Nodes: 2, GPUs: 2, Sharing: "shard"})
	b := New(t, Options{})
	for _, c := range []*Cluster{a, b} {
		arg := "--gres=" + c.Options.Sharing + ":60"
		id, err := c.Submit(ctx, "nobody", "sleep 0.1", arg)
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := c.WaitState(ctx, 30*time.Second, id, "COMPLETED"); !ok {
			t.Errorf("%s: job is %s", arg, s)
		}
	}
	a.KillController()
	if err := a.StartController(ctx); err != nil {
		t.Fatal(err)
	}
}
