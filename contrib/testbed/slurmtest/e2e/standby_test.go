package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
)

// Two hosts with a slurmctld and a daemon each. While jobs run together and groups wait, the first host dies: the
// second takes over with both, jobs share again, none is lost or runs twice. The first daemon comes back and is
// standby.
func TestSecondHostTakesOver(t *testing.T) {
	slurmtest.OfOneRelease(t)
	if os.Getenv("SLURMBRIDGE_TEST_ROOT") != "" {
		t.Skip("a first slurmctld of 26.05 doesn't answer while it calls a second one on the same machine")
	}
	t.Parallel()
	const lease = 20 * time.Second
	s := newWorld(t, cluster.Setup{
		Scale: 40, Lease: lease, Standby: true, Adjust: func(o *slurmtest.Options) { o.Backup = true },
	})
	status := func(url string) (st httpapi.Report) {
		was := s.URL
		s.URL = url
		_ = s.Get("/v1/status", &st) // one that doesn't answer says nothing
		s.URL = was
		return st
	}
	s.until("standby", func() bool { return status(s.StandbyURL).Standby == "head1" })
	s.until("a backup slurmctld", func() bool { return strings.Count(s.says("scontrol", "ping"), "is UP") == 2 })
	var ids []string
	word := s.Path("out", "compute")
	submit := func(n int) {
		t.Helper()
		for range n {
			ids = append(ids, s.submit("until test -e "+word+"; do sleep 0.2; done\n"+s.gpusim("gromacs"),
				"--gres=gpu:shared", "--requeue", "--comment=app=gromacs"))
		}
	}
	submit(8)
	s.reach("RUNNING", ids[0])
	// A slurmctld that is killed forgets what it has not written down: a job that has started since would run twice, and
	// one that has ended since would run for ever. None ends until it is killed.
	queue := func() string { return s.as("", "squeue", "-h", "-o", "%i %T") }
	seen, was := time.Now(), queue()
	s.until("jobs written down", func() bool {
		info, err := os.Stat(s.Path("state", "job_state"))
		if err != nil || !info.ModTime().After(seen) {
			return false
		}
		at, now := time.Now(), queue()
		same := now == was
		seen, was = at, now
		return same
	})
	s.KillController()
	s.Kill(cluster.BridgeDaemon)
	must.OK(t, os.WriteFile(word, nil, 0o644))
	s.until("the second slurmctld", func() bool {
		_, err := s.Run(t.Context(), "squeue", "-h")
		return err == nil
	})
	s.until("the second daemon", func() bool { st := status(s.StandbyURL); return st.Standby == "" && st.Gate != "" })
	// A slurmctld that has taken over knows a node's GPUs once the node has registered. It has refused shares of a GPU
	// when it took a job of a whole one already.
	s.until("a node whose shares are known", func() bool {
		_, err := s.Run(t.Context(), "sbatch", "--test-only", "--gres=gpu:shared", "--wrap=true")
		return err == nil
	})
	submit(4)
	before := len(ids)
	must.OK(t, s.Again(cluster.BridgeDaemon))
	s.reach("COMPLETED", ids...)
	for _, id := range ids {
		must.Equal(t, s.job(id)["Restarts"], "0", "restarts of job %s", id)
	}
	s.until("the first daemon as standby", func() bool { return status(s.URL).Standby == "head2" })
	first := s.URL
	s.URL = s.StandbyURL
	defer func() { s.URL = first }()
	s.until("groups of the second daemon",
		func() bool { n, err := s.Metric("slurmbridge_groups_total"); return err == nil && n > 0 })
	s.until("records", func() bool {
		n, err := s.Metric("slurmbridge_records_total", "new")
		return err == nil && n == float64(before)
	})
}
