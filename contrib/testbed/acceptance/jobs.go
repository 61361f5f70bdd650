package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver of the controller's database
)

// job is a submitted one.
type job struct {
	id, user, app string
}

var submitted = regexp.MustCompile(`Submitted batch job (\d+)`)

// share submits as in the README, from the folder of the application.
func (r *rig) share(ctx context.Context, user, app string) (job, error) {
	b, err := r.readme.take("user", "submit")
	if err != nil {
		return job{}, err
	}
	return r.submit(ctx, user, app, b.text)
}

func (r *rig) submit(ctx context.Context, user, app, command string) (job, error) {
	out, err := r.head.as(ctx, user, app, command)
	if err != nil {
		return job{}, err
	}
	m := submitted.FindStringSubmatch(out)
	if m == nil {
		return job{}, fmt.Errorf("sbatch said %q", out)
	}
	return job{id: m[1], user: user, app: app}, nil
}

// shareAll submits every user's applications, rounds times.
func (r *rig) shareAll(ctx context.Context, rounds int) ([]job, error) {
	var out []job
	for range rounds {
		for _, u := range users {
			for _, app := range u.apps {
				j, err := r.share(ctx, u.name, app)
				if err != nil {
					return nil, err
				}
				out = append(out, j)
			}
		}
	}
	return out, nil
}

// look is `scontrol show job` of one, by field.
func (r *rig) look(ctx context.Context, id string) (map[string]string, error) {
	out, err := r.head.sh(ctx, "scontrol show job -o "+id)
	if err != nil {
		return nil, err
	}
	f := map[string]string{}
	for word := range strings.FieldsSeq(out) {
		k, v, _ := strings.Cut(word, "=")
		if _, there := f[k]; !there {
			f[k] = v
		}
	}
	if i := strings.Index(out, " AdminComment="); i >= 0 {
		f["AdminComment"], _, _ = strings.Cut(out[i+len(" AdminComment="):], "  ")
	}
	return f, nil
}

// ended waits until all jobs have completed, and says how many were started more than once.
func (r *rig) ended(ctx context.Context, jobs []job, limit time.Duration) (restarts int, err error) {
	states := map[string]int{}
	err = until(ctx, limit, func() error {
		clear(states)
		restarts = 0
		for _, j := range jobs {
			f, err := r.look(ctx, j.id)
			if err != nil {
				return err
			}
			states[f["JobState"]]++
			if f["Restarts"] != "0" {
				restarts++
			}
		}
		if states["COMPLETED"] != len(jobs) {
			return fmt.Errorf("jobs are %s", count(states))
		}
		return nil
	})
	return restarts, err
}

func count(m map[string]int) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%d %s", m[k], k))
	}
	return strings.Join(out, ", ")
}

// gated waits until some jobs run and at least n wait at the gate.
func (r *rig) gated(ctx context.Context, jobs []job, n int) error {
	return until(ctx, time.Minute, func() error {
		running, waiting := 0, 0
		for _, j := range jobs {
			f, err := r.look(ctx, j.id)
			switch {
			case err != nil:
				return err
			case f["JobState"] == "RUNNING":
				running++
			case f["JobState"] == "PENDING" && f["Dependency"] != "(null)":
				waiting++
			}
		}
		if running == 0 || waiting < n {
			return fmt.Errorf("%d run and %d wait with a dependency", running, waiting)
		}
		return nil
	})
}

// queued submits rounds of jobs and waits until most of them wait.
func (r *rig) queued(ctx context.Context, rounds int) ([]job, error) {
	jobs, err := r.shareAll(ctx, rounds)
	if err != nil {
		return nil, err
	}
	return jobs, r.gated(ctx, jobs, 2)
}

// recorded is how many runs the controller's database holds, read from outside.
func (r *rig) recorded(ctx context.Context) (int, error) {
	db, err := sql.Open("sqlite", "file:"+r.head.dir+"/var/lib/slurmbridge/slurmbridge.db?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		return 0, err
	}
	defer db.Close()
	n := 0
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM runs").Scan(&n); err != nil {
		return 0, fmt.Errorf("count runs: %w", err)
	}
	return n, nil
}

// records waits until so many runs are recorded, and fails where there are more.
func (r *rig) records(ctx context.Context, want int) error {
	return until(ctx, 40*time.Second, func() error {
		n, err := r.recorded(ctx)
		if err == nil && n != want {
			err = fmt.Errorf("%d runs are recorded, not %d", n, want)
		}
		return err
	})
}

// group is one of /v1/groups.
type group struct {
	Members []struct {
		Ref string `json:"ref"`
	} `json:"members"`
	Complete bool    `json:"complete"`
	SkewS    float64 `json:"skew_s"`
}

// groups are the daemon's latest groups.
func (r *rig) groups(ctx context.Context) ([]group, error) {
	out, err := r.head.sh(ctx, "curl -fsS http://head:9797/v1/groups")
	if err != nil {
		return nil, err
	}
	var g []group
	if err := json.Unmarshal([]byte(out), &g); err != nil {
		return nil, fmt.Errorf("/v1/groups: %w", err)
	}
	return g, nil
}
