package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
)

// eve is a user who tries everything on a cluster that hides jobs from others; ann's jobs
// share, run and are recorded all the same.
type eve struct {
	*world
	stop context.Context
	all  sync.WaitGroup
}

const eveUser = bob

func (e *eve) sbatch(script string, args ...string) string {
	e.t.Helper()
	for try := 1; ; try++ {
		id, err := e.Submit(e.t.Context(), eveUser, script, append([]string{"--output=/dev/null"}, args...)...)
		switch {
		case err == nil:
			return id
		case try == 3 || !strings.Contains(err.Error(), "Socket timed out"): // a slow machine's slurmctld
			e.t.Fatal(err)
		}
	}
}

// again does something until the test ends.
func (e *eve) again(pause time.Duration, f func()) {
	e.all.Go(func() {
		for e.stop.Err() == nil {
			f()
			time.Sleep(pause)
		}
	})
}

// shares asks for a part of a GPU by hand, new and of a job that waits.
func (e *eve) shares() {
	out := e.as(eveUser, "sbatch", "--hold", "--output=/dev/null", "--gres=mps:1", "--wrap=true")
	must.Contain(e.t, out, "mps:1 asks for a part of a GPU")
	fields := strings.Fields(out)
	id := fields[len(fields)-1]
	e.as(eveUser, "scontrol", "update", "JobId="+id, "Gres=mps:1")
	if f := e.job(id); !strings.HasSuffix(f["TresPerNode"], "mps:100") {
		e.t.Errorf("job %s asks for %s", id, f["TresPerNode"])
	}
}

// flood submits jobs with texts that look like something else, and an array that would fill a poll of the queue.
func (e *eve) flood() {
	for i := range 60 {
		e.sbatch("exit 1\n", "--hold", "--gres=gpu:shared", "--job-name=x\n|"+strconv.Itoa(i)+"|JobId=1 UserId=root(0)",
			"--comment=app=../../etc/passwd,share=max-slowdown=nan\n1|2|3")
	}
	e.sbatch("#!/bin/sh\n#SBATCH --exclude="+strings.Repeat("n2,", 100_000)+"n2\ntrue\n", "--hold", "--gres=gpu:shared",
		"--array=1-1000")
}

// pretend runs processes that call themselves a step of Slurm's.
func (e *eve) pretend() {
	e.sbatch("#!/bin/bash\nfor i in 1 2 3 4 5; do (exec -a 'slurmstepd: [1.batch]' sleep 60) & done\nwait\n",
		"--cpus-per-task=1", "--mem=10M")
}

// slander fails under the name of ann's application, next to her own.
func (e *eve) slander() {
	for range 4 {
		e.sbatch("exit 1\n", "--gres=gpu:shared", "--comment=app=hoomd", "--time=5")
		e.sbatch("sleep 1\n", "--gres=gpu:shared", "--comment=app=gromacs", "--time=5")
	}
}

// http sends junk credentials, and asks for much that it never reads.
func (e *eve) http() {
	addr := strings.TrimPrefix(e.URL, "http://")
	for range 40 {
		e.again(5*time.Millisecond, func() {
			req, err := http.NewRequestWithContext(e.stop, http.MethodPost, e.URL+"/v1/records", strings.NewReader("x"))
			if err != nil {
				return
			}
			req.Header.Set("Munge-Credential", "MUNGE:"+strings.Repeat("A", 400)+":")
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	for range 10 {
		e.again(time.Second, func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				return
			}
			defer c.Close()
			fmt.Fprintf(c, "GET /v1/groups?since=2000-01-01T00:00:00Z HTTP/1.1\r\nHost: x\r\n\r\n")
			select { // and never reads
			case <-e.stop.Done():
			case <-time.After(5 * time.Second):
			}
		})
	}
}

// spy reads whatever is served.
func (e *eve) spy(annsJob string) {
	for _, path := range []string{"/", "/v1/status", "/v1/groups", "/metrics"} {
		text, err := e.Text(path)
		if err != nil {
			e.t.Errorf("%s: %v", path, err)
		}
		for _, word := range []string{ann, "hoomd", "gromacs"} {
			if strings.Contains(text, word) {
				e.t.Errorf("%s names %s", path, word)
			}
		}
	}
	e.until("ann is told why her job waits", func() bool {
		out, err := e.ask(ann, "why", annsJob)
		return err == nil && strings.Contains(out, "Job "+annsJob)
	})
	if out, err := e.ask(eveUser, "why", annsJob); err == nil || !strings.Contains(out, "not yours") {
		e.t.Errorf("eve asks why ann's job waits: %s, %v", out, err)
	}
	const hers = `"user": "` + ann + `"`
	e.until("ann sees her jobs in the state", func() bool {
		out, err := e.ask(ann, "status", "--json")
		return err == nil && strings.Contains(out, hers)
	})
	if out, err := e.ask(eveUser, "status", "--json"); err != nil || strings.Contains(out, hers) {
		e.t.Errorf("eve asks for the state: %s, %v", out, err)
	}
}

// It runs by itself: its floods would cost other tests their deadlines.
func TestHostileTenant(t *testing.T) {
	slurmtest.OfOneRelease(t)
	// Two nodes, so that one can be excluded.
	w := newWorld(t, cluster.Setup{NodeGPUs: []int{1, 1}, Adjust: func(o *slurmtest.Options) {
		o.Extra = append(o.Extra, "PrivateData=jobs")
		o.MemMiB, o.CPUs = 32000, 64
	}})
	stop, cancel := context.WithCancel(t.Context())
	e := &eve{world: w, stop: stop}
	defer e.all.Wait()
	defer cancel()
	e.shares()
	e.slander()
	e.flood()
	e.pretend()
	e.http()

	var jobs []string
	for i := range 8 {
		app := []string{"hoomd", "gromacs"}[i%2]
		jobs = append(jobs, e.run(app, "", app, "--time=20", "--output=/dev/null"))
	}
	e.spy(jobs[len(jobs)-1])
	e.reach("COMPLETED", jobs...)
	cancel()
	e.all.Wait()
	together := 0
	for _, id := range jobs {
		out, err := e.ask(ann, "why", "--json", id)
		var story journal.Story
		if err != nil || json.Unmarshal([]byte(out), &story) != nil {
			t.Errorf("ann asks what became of her job: %s, %v", out, err)
		}
		for i := range story.Runs {
			together += len(story.Runs[i].CoRunners)
		}
		for i := range story.Groups {
			together += len(story.Groups[i].Members) - 1
		}
	}
	if together == 0 {
		t.Error("none of ann's jobs shared a GPU")
	}
	e.records(len(jobs))
	if n := e.metric("process_resident_memory_bytes"); n > 512<<20 {
		t.Errorf("the bridge holds %.0f MB", n/1e6)
	}
}
