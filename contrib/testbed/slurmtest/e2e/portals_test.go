package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// portals is the folder of what portals' admins copy.
const portals = "../../../portals"

// onDemand returns sbatch's arguments for each choice of Open OnDemand's form. submit.yml.erb has no Ruby but names of
// the form's attributes, which are filled in here: no Ruby renders it.
func onDemand(t *testing.T) (all [][]string) {
	t.Helper()
	var form struct {
		Attributes map[string]struct{ Options [][]string }
		Form       []string
	}
	must.OK(t, yaml.Unmarshal(must.Get(os.ReadFile(filepath.Join(portals, "form.yml")))(t), &form))
	submit := string(must.Get(os.ReadFile(filepath.Join(portals, "submit.yml.erb")))(t))
	names := regexp.MustCompile(`<%= ([a-z_]+) %>`).FindAllStringSubmatch(submit, -1)
	if len(names) != 1 || strings.Count(submit, "<%") != 1 || !slices.Contains(form.Form, names[0][1]) {
		t.Fatalf("submit.yml.erb has %q, form.yml %q", names, form.Form)
	}
	for _, option := range form.Attributes[names[0][1]].Options {
		var call struct {
			Script struct{ Native []string }
		}
		must.OK(t, yaml.Unmarshal([]byte(strings.ReplaceAll(submit, names[0][0], option[1])), &call))
		all = append(all, call.Script.Native)
	}
	return all
}

// jupyterHub returns sbatch's arguments in batchspawner's script for each choice in the form, and for what isn't one.
func jupyterHub(t *testing.T) (all [][]string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3 here")
	}
	const call = `
import json, re, sys, types
sys.modules["batchspawner"] = types.ModuleType("batchspawner")
conf = types.SimpleNamespace(JupyterHub=types.SimpleNamespace(), SlurmSpawner=types.SimpleNamespace())
exec(open(sys.argv[1]).read(), {"get_config": lambda: conf})
s = conf.SlurmSpawner
choices = re.findall("<option>(.*?)</option>", s.options_form) + ["8G\n#SBATCH --uid=0"]
rendered = [s.req_options] + [s.options_from_form({"gpu_memory": [m]})["options"] for m in choices]
print(json.dumps([["--gres=" + s.req_gres, o] for o in rendered]))`
	out, err := exec.Command(python, "-c", call, filepath.Join(portals, "jupyterhub_config.py")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must.OK(t, json.Unmarshal(out, &all))
	return all
}

// Whatever is chosen in a portal's form asks for a session on a shared GPU, held to what was chosen.
func TestPortalsAskForSessions(t *testing.T) {
	for name, of := range map[string]func(*testing.T) [][]string{"Open OnDemand": onDemand, "JupyterHub": jupyterHub} {
		t.Run(name, func(t *testing.T) {
			calls := of(t)
			memory := map[float64]bool{}
			for _, args := range calls {
				comment, is := strings.CutPrefix(args[len(args)-1], "--comment=")
				terms := job.ParseTerms(comment)
				if memory[terms.SessionMiB] = true; len(args) != 2 || args[0] != "--gres=gpu:shared" || !is || !terms.Session ||
					terms.SessionMiB < 1024 || len(terms.Ignored) > 0 {
					t.Errorf("%q: %+v", args, terms)
				}
			}
			must.Equal(t, len(memory), 3, "choices of memory: %q", calls)
		})
	}
}

// The sessions of portals run on a shared GPU, held to what was chosen: as Slurm is called by them, and VS Code's
// script as its user submits it.
func TestSessionsOfPortals(t *testing.T) {
	t.Parallel()
	r := newWorld(t, cluster.Setup{Cold: true, NodeGPUs: []int{1, 1, 1}, Models: []string{"v100", "v100", "v100"}})
	const held = "echo held to $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT\n"
	call := append(onDemand(t)[1], "--job-name=sys/dashboard/sys/jupyter", "--time=10")
	ids := []string{r.submit(held+"sleep 600", call...)}
	if _, err := exec.LookPath("python3"); err == nil {
		script := "#!/bin/bash\n#SBATCH " + strings.Join(jupyterHub(t)[2], "\n#SBATCH ") + "\n" + held + "sleep 600"
		ids = append(ids, r.submit(script, "--time=10"))
	}
	bin := r.Path("vscode")
	must.OK(t, os.MkdirAll(bin, 0o755))
	code := "#!/bin/sh\n" + held + "echo \"called [$*]\"\nexec sleep 600\n"
	must.OK(t, os.WriteFile(filepath.Join(bin, "code"), []byte(code), 0o755))
	script := string(must.Get(os.ReadFile(filepath.Join(portals, "vscode.sh")))(t))
	vscode := r.submit(strings.Replace(script, "\nexec", "\nPATH="+bin+":$PATH exec", 1), "--time=10")
	ids = append(ids, vscode)
	r.reach("RUNNING", ids...)
	for _, id := range ids {
		wants := []string{"=8602M\n"} // 8 GiB and a margin of 5 %
		if id == vscode {
			wants = append(wants, "called [tunnel --accept-server-license-terms --name gpu-"+id+"]\n")
		}
		r.until(fmt.Sprintf("job %s says %q", id, wants), func() bool {
			said, _ := os.ReadFile(r.job(id)["StdOut"])
			return !slices.ContainsFunc(wants, func(w string) bool { return !strings.Contains(string(said), w) })
		})
	}
}
