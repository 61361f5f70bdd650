package e2e

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// TestFiguresOfManyNodes measures a cluster of SLURMBRIDGE_FIGURES_NODES real slurmds with 5,000 pending sharers, plain
// and with the bridge: rounds, polls, RPCs a minute, the memory of daemon and slurmctld, and slurmctld's cycle. Jobs
// sleep, and there are no hooks. It asserts nothing about speed.
func TestFiguresOfManyNodes(t *testing.T) {
	nodes, err := strconv.Atoi(os.Getenv("SLURMBRIDGE_FIGURES_NODES"))
	if err != nil {
		t.Skip("SLURMBRIDGE_FIGURES_NODES says how many nodes")
	}
	const pending, most = 5000, 3 // jobs on a GPU
	const app = "m3000g30d600"
	for _, bridged := range []bool{false, true} {
		t.Run(map[bool]string{false: "plain", true: "bridged"}[bridged], func(t *testing.T) {
			r := newRig(t, options{quiet: true, settings: settings{Lease: time.Minute}, Options: slurmtest.Options{
				Nodes: nodes, Prepare: func(*slurmtest.Cluster) error { return nil }, // no hooks
				Scheduler: "bf_interval=30,sched_interval=10,batch_sched_delay=1",
				Extra:     []string{"TreeWidth=1000", "SlurmctldTimeout=300"},
			}})
			jobs, gres := nodes+pending, "gpu:1"
			if bridged {
				jobs, gres = most*nodes+pending, "gpu:shared"
				r.settings.Figures, r.settings.Known = r.Path("run", "figures"), app
				r.start()
			}
			for left := jobs; left > 0; left -= 1000 { // as arrays: sbatch is not what is measured
				if _, err := r.Submit(t.Context(), ann, "sleep 600", "--time=60", "--output=/dev/null", "--job-name=wrap",
					"--gres="+gres,
					"--comment=app="+app, fmt.Sprintf("--array=1-%d", min(left, 1000))); err != nil {
					t.Fatal(err)
				}
			}
			count := func(state string) int {
				out := must.Get(r.Run(t.Context(), "squeue", "-h", "-r", "-t", state, "-n", "wrap", "-o", "%i"))(t)
				return len(strings.Fields(out))
			}
			last := -1 // until no more start
			slurmtest.Wait(t.Context(), 3*time.Minute, func() bool {
				n := count("R")
				same := n == last
				last = n
				time.Sleep(5 * time.Second)
				return same && n >= nodes
			})
			must.Get(r.Run(t.Context(), "sdiag", "-r"))(t)
			from := time.Now()
			time.Sleep(2 * time.Minute)
			said := must.Get(r.Run(t.Context(), "sdiag"))(t)
			t.Logf("%d nodes, %d jobs run, %d pending", nodes, count("R"), count("PD"))
			t.Logf("slurmctld: %s; %s", memory(t, r.Path("run", "slurmctld.pid")), cycles(said))
			if bridged {
				r.rounds(from, fmt.Sprint(r.bridge.Process.Pid))
			}
		})
	}
}

// memory is what a process holds at present and held at most, by the file of its number.
func memory(t *testing.T, pidFile string) string {
	t.Helper()
	pid := must.Get(os.ReadFile(pidFile))(t)
	status := must.Get(os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/status"))(t)
	return strings.Join(regexp.MustCompile(`(?m)^(VmRSS|VmHWM):\s+\d+ kB`).FindAllString(string(status), -1), ", ")
}

// cycles are sdiag's lines of scheduling cycles and of the RPCs of users.
func cycles(sdiag string) string {
	return strings.Join(regexp.MustCompile(`(?m)^\s*(Mean cycle|Max cycle|Total cycles|Last queue length|Mean depth cycle|\S+\s+\(\s*\d+\) count):?.*$`).FindAllString(sdiag, -1), "; ")
}

// rounds logs what the bridge wrote of its rounds and commands since a time.
func (r *rig) rounds(from time.Time, pid string) {
	r.t.Helper()
	f := must.Get(os.Open(r.Path("run", "figures")))(r.t)
	defer f.Close()
	took := map[string][]time.Duration{}
	for s := bufio.NewScanner(f); s.Scan(); {
		var what string
		var at, ns int64
		if _, err := fmt.Sscan(s.Text(), &at, &ns, &what); err == nil && at >= from.UnixNano() {
			took[what] = append(took[what], time.Duration(ns))
		}
	}
	for what, all := range took {
		r.t.Logf("%s: %.1f a minute, %s", what, float64(len(all))/time.Since(from).Minutes(), spread(all))
	}
	file := r.Path("run", "bridge.number")
	must.OK(r.t, os.WriteFile(file, []byte(pid), 0o644))
	r.t.Logf("bridge: %s", memory(r.t, file))
}
