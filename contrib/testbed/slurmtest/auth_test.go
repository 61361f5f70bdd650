package slurmtest

import (
	"os"
	"strings"
	"testing"
)

// On a cluster whose Slurm proves who is who by itself users' jobs run, and there is no munged.
func TestAuthSlurm(t *testing.T) {
	RequireAuthSlurm(t)
	c := New(t, Options{AuthSlurm: true})
	id := c.submit(t, "games", "id -un")
	c.reaches(t, id, "COMPLETED")
	if got := strings.TrimSpace(c.output(t, id)); got != "games" {
		t.Errorf("the job ran as %q", got)
	}
	if conf, err := c.Run(t.Context(), "scontrol", "show", "config"); err != nil || !strings.Contains(conf, "auth/slurm") {
		t.Error(conf, err)
	}
	if _, err := os.Stat(c.MungeSocket); err == nil {
		t.Error("there is a munged")
	}
}
