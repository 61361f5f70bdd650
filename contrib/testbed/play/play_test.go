package play

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// typed has a user type into the shell, and returns what the terminal shows.
func typed(t *testing.T, o options, text string) (shown string, err error) {
	t.Helper()
	o.Build, o.Lua, o.Scale = "../../../build", "../../job_submit.lua", 200
	cluster.Require(t, o.Build)
	t.Parallel()
	file := filepath.Join(t.TempDir(), "typed")
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	o.in = must.Get(os.Open(file))(t)
	defer o.in.Close()
	var out strings.Builder
	o.out, o.err = &out, &out
	err = play(t.Context(), &o)
	t.Log(out.String())
	return out.String(), err
}

// What the greeting says to type works, and at the shell's end the cluster's folder is gone.
func TestPlay(t *testing.T) {
	out, err := typed(t, options{Setup: cluster.Setup{Policy: "dqn"}}, `
for app in alexnet vgg11; do sbatch --wait --gres=gpu:shared $app.sh & done
as games sbatch --wait --gres=gpu:1 gromacs.sh
wait
echo "folder $PWD"
gpus
slurmbridge status
for job in 2 3 4; do
	until slurmbridge why $job | grep "job $job completed after"; do sleep 0.1; done
	slurmbridge why $job
done
slurmbridge why 99
slurmbridge receipt
slurmbridge usage
slurmbridge usage --by job --me
`)
	must.OK(t, err)
	_, rest, _ := strings.Cut(out, "folder ")
	dir, _, _ := strings.Cut(rest, "\n")
	if _, err := os.Stat(dir); dir == "" || !os.IsNotExist(err) {
		t.Errorf("folder %q is still there: %v", dir, err)
	}
	for _, want := range []string{
		"sbatch --gres=gpu:shared", "SLURM_CONF=", "http://127.0.0.1:", "job 4 completed after",
		"nothing is known of job 99", "3 jobs of 2 users ended", "GPU usage",
	} {
		must.Contain(t, out, want)
	}
	_, said, _ := strings.Cut(out, "polled ") // from status on
	for _, silly := range []string{
		"NaN", "0 jobs, 0 s", " 0 jobs in 0", "by 0.00 times", "-0 ", " 0.0 ", " 0s ", "not in the journal",
		"seen no second time",
	} {
		if strings.Contains(said, silly) {
			t.Errorf("of three jobs and a few seconds it says %q", silly)
		}
	}
}

// Jobs share MIG instances, and each computes on one; an older Slurm is refused with a sentence.
func TestPlayMIG(t *testing.T) {
	root := os.Getenv("SLURMBRIDGE_TEST_ROOT")
	out, err := typed(t, options{Setup: cluster.Setup{Policy: "srpt"}, mig: true, root: root}, `
for app in alexnet vgg11 alexnet vgg11; do sbatch --wait --gres=gpu:shared $app.sh & done
as games sbatch --wait --gres=gpu:3g.20gb:1 gromacs.sh
wait
scontrol show node n1 | grep Gres=
slurmbridge status
slurmbridge doctor
`)
	if release := must.Get(slurmtest.ReleaseOf(t.Context(), root))(t); !text.SharesInstances(release) {
		must.Is(t, err, errOld, "Slurm %s", release)
		return
	}
	must.OK(t, err)
	for _, want := range []string{"A100s, cut into 3g.20gb", "shard:3g.20gb:100", "│ n1   │   3 │ 1g.5gb "} {
		must.Contain(t, out, want)
	}
	if strings.Contains(out, "MIG instances without shares") {
		t.Error("doctor finds instances without shares")
	}
}
