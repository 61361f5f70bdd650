package main

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver of the controller's database

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// job is a submitted one.
type job struct {
	id, user, app string
}

var submitted = regexp.MustCompile(`Submitted batch job (\d+)`)

// share submits as the users' page says, from the folder of the application.
func (r *rig) share(user, app string) job {
	return r.submit(user, app, r.manual.take("user", "submit").text)
}

func (r *rig) submit(user, app, command string) job {
	out := r.as(user, app, command)
	m := submitted.FindStringSubmatch(out)
	if m == nil {
		fail("sbatch said %q", out)
	}
	return job{id: m[1], user: user, app: app}
}

// shareAll submits every user's applications, rounds times.
func (r *rig) shareAll(rounds int) (out []job) {
	for range rounds {
		for _, u := range users {
			for _, app := range u.apps {
				out = append(out, r.share(u.name, app))
			}
		}
	}
	return out
}

// fields is `scontrol show job` of one, by field.
func (r *rig) fields(id string) map[string]string {
	return slurmtest.Fields(r.sh(r.head, "scontrol show job "+id))
}

// ended waits until all jobs have completed, and returns how many were started more than once.
func (r *rig) ended(jobs []job, limit time.Duration) (restarts int) {
	r.until(limit, func() {
		states := map[string]int{}
		restarts = 0
		for _, j := range jobs {
			f := r.fields(j.id)
			states[f["JobState"]]++
			if f["Restarts"] != "0" {
				restarts++
			}
		}
		if states["COMPLETED"] != len(jobs) {
			var are []string
			for _, k := range slices.Sorted(maps.Keys(states)) {
				are = append(are, fmt.Sprintf("%d %s", states[k], k))
			}
			fail("jobs are %s", strings.Join(are, ", "))
		}
	})
	return restarts
}

// gated waits until some jobs run and at least n wait at the gate.
func (r *rig) gated(jobs []job, n int) {
	r.until(time.Minute, func() {
		running, waiting := 0, 0
		for _, j := range jobs {
			switch f := r.fields(j.id); {
			case f["JobState"] == "RUNNING":
				running++
			case f["JobState"] == "PENDING" && f["Dependency"] != "(null)":
				waiting++
			}
		}
		if running == 0 || waiting < n {
			fail("%d run and %d wait with a dependency", running, waiting)
		}
	})
}

// queued submits rounds of jobs and waits until most of them wait.
func (r *rig) queued(rounds int) []job {
	jobs := r.shareAll(rounds)
	r.gated(jobs, 2)
	return jobs
}

// recorded is how many runs the controller's database holds, read from outside.
func (r *rig) recorded() (n int) {
	db := must(sql.Open("sqlite",
		"file:"+r.head.dir+"/var/lib/slurmbridge/slurmbridge.db?mode=ro&_pragma=busy_timeout(5000)"))
	defer db.Close()
	check(because("count runs", db.QueryRowContext(r.ctx, "SELECT count(*) FROM record").Scan(&n)))
	return n
}

// records waits until so many runs are recorded, and fails where there are more.
func (r *rig) records(want int) {
	r.until(40*time.Second, func() {
		if n := r.recorded(); n != want {
			fail("%d runs are recorded, not %d", n, want)
		}
	})
}

// all waits for jobs' end, and fails where one was started twice or a record is missing.
func (r *rig) all(jobs []job, before int) {
	if again := r.ended(jobs, 5*time.Minute); again > 0 {
		fail("%d jobs were started more than once", again)
	}
	r.records(before + len(jobs))
}

// groups returns how many pairs of jobs started as one group, and the longest time between two starts of one, s.
func (r *rig) groups(jobs []job) (pairs int, worst float64) {
	var groups []struct {
		Members []struct {
			Ref string `json:"ref"`
		} `json:"members"`
		Complete bool    `json:"complete"`
		SkewS    float64 `json:"skew_s"`
	}
	check(because("/v1/groups", json.Unmarshal([]byte(r.sh(r.head, "curl -fsS http://head:9797/v1/groups")), &groups)))
	for i := 0; i < len(jobs); i += 2 {
		for _, g := range groups {
			n := 0
			for _, m := range g.Members {
				if m.Ref == jobs[i].id || m.Ref == jobs[i+1].id {
					n++
				}
			}
			if n == 2 && g.Complete {
				pairs++
				worst = max(worst, g.SkewS)
			}
		}
	}
	return pairs, worst
}

// see is the users' page's way to see partners, while the job has some.
func (r *rig) see(jobs []job) (why string) {
	text := r.manual.take("user", "see").text
	r.until(90*time.Second, func() {
		last := error(nil)
		for _, j := range jobs {
			out := ""
			if last = attempt(func() { out = r.as(j.user, j.app, "JOB="+j.id+"\n"+text) }); last != nil {
				continue
			}
			if last = fmt.Errorf("nothing of partners: %s", tail(out)); strings.Contains(out, "together") &&
				strings.Contains(out, "with ") {
				_, comment, _ := strings.Cut(out, "slurmbridge: ")
				said, _, _ := strings.Cut(comment, "\n")
				why = j.user + " reads “" + strings.Join(strings.Fields(said), " ") + "”"
				return
			}
		}
		check(last)
	})
	return why
}

// nodeIs waits until Slurm says so of the node: idle is up and without a job, down is given up.
func (r *rig) nodeIs(limit time.Duration, state string) {
	r.until(limit, func() {
		if out := r.sh(r.head, "sinfo -h -o '%T %E'"); !strings.HasPrefix(out, state) {
			fail("the node is %s", strings.TrimSpace(out))
		}
	})
}

const idle, down = "idle ", "down"

// whole runs a job on a whole GPU, as on any cluster.
func (r *rig) whole() {
	r.ended([]job{r.submit("alice", "gromacs", "sbatch --gres=gpu:1 job.sh")}, time.Minute)
}

// unplugged does something while the node's network cable is out, and returns for how long it was.
func (r *rig) unplugged(do func()) time.Duration {
	plug := func(state string) error {
		_, err := call(r.ctx, "ip", "link", "set", "vb-"+nodeName, state)
		return err
	}
	check(plug("down"))
	at := time.Now()
	err := attempt(do)
	away := time.Since(at)
	if back := plug("up"); err == nil {
		err = back
	}
	check(err)
	return away
}
