package appid

import (
	"cmp"
	"encoding/base64"
	"regexp"
	"strings"
	"unicode/utf8"
)

// payload is a launcher that doesn't say what it runs (a pickled function, a scheduler's tasks), so job names count.
type payload struct {
	// program names the program or module, or its beginning if it ends with a dot. An argument must begin with arg.
	program, arg string
	// each: jobs run different functions, so a generic name doesn't count. Other payloads are alike: workers of a pool.
	each bool
}

var payloads = []payload{
	{"submitit.core._submit", "", true},
	{"executorlib.backend.", "", true},
	{"pympipool.backend.", "", true},
	{"cfut.remote", "", true},
	{"cloudpickle.", "", true},
	{"_toil_worker", "", true},
	{"rlaunch", "", true},
	{"R", "batchtools::", true},
	{"Rscript", "batchtools::", true},
	{"R", "clustermq:::", false},
	{"Rscript", "clustermq:::", false},
	{"distributed.cli.dask_worker", "", false},
	{"distributed.cli.dask_spec", "", false},
	{"dask_cuda.cli", "", false},
	{"dask-worker", "", false},
	{"dask-cuda-worker", "", false},
	{"dask", "worker", false},
	{"dask", "cuda", false},
	{"process_worker_pool.py", "", false},
	{"parsl.executors.", "", false},
	{"ray", "start", false},
	{"ray.scripts.scripts", "start", false},
	{"wandb", "agent", false},
	{"ipengine", "", false},
	{"ipyparallel.engine", "", false},
	{"julia", "--worker", false},
	{".command.sh", "", false},
	{".command.run", "", false},
}

// untold are job names that launchers give to all of their jobs.
var untold = set("submitit wrap sbatch sh bash executorlib pympipool cfut toil fw_job")

// tellsPayload reports whether a job's name, with parts masked, says what the job runs.
func tellsPayload(name string) bool {
	return !untold[name] && strings.Trim(name, maskedMark+"0123456789-_. ") != ""
}

func payloadOf(program string, args []string) *payload {
	for i := range payloads {
		p := &payloads[i]
		named := p.program == program || strings.HasSuffix(p.program, ".") && strings.HasPrefix(program, p.program)
		if !named {
			continue
		}
		for _, a := range append([]string{""}, args...) {
			if strings.HasPrefix(a, p.arg) && (a != "" || p.arg == "") {
				return p
			}
		}
	}
	return nil
}

// jobName masks a job's name, including the wildcards that workflow tools add to it.
func (r *reader) jobName(name string) string {
	if m := nextflow.FindStringSubmatch(name); m != nil {
		return m[1] + r.mask(m[2], "a workflow's rule is the application")
	}
	return r.named(name, naming{})
}

// nextflow matches Nextflow's job names, a process with a tag: nf-train_(seed_5).
var nextflow = regexp.MustCompile(`^(nf-[^(]*)(\(.*\))$`)

// wildcards masks a Snakemake target, train:seed=1,model=small. A target without wildcards is returned unchanged.
func (r *reader) wildcards(w string) string {
	if !target.MatchString(w) {
		return w
	}
	return wildcard.ReplaceAllStringFunc(w, func(found string) string {
		name, value, _ := strings.Cut(found, "=")
		means, why := meaningOf(name, true)
		if means == masked || samples[name[1:]] {
			return name + "=" + r.mask(name[1:]+" "+value, cmp.Or(why, "a workflow's rule is the application"))
		}
		return found
	})
}

var (
	target   = regexp.MustCompile(`^\w+:\w+=`)
	wildcard = regexp.MustCompile(`[:,]\w+=[^,]*`)
	// samples are wildcards that only select one of many pieces of data.
	samples = set("sample samples subject patient barcode lane read unit id idx index i accession scatteritem")
)

// decoded masks an argument that Snakemake has encoded in base64.
func (r *reader) decoded(w string) string {
	text, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(w, "base64//"))
	if err != nil || !utf8.Valid(text) || strings.ContainsFunc(string(text), func(c rune) bool { return c < ' ' }) {
		return w
	}
	return r.named(r.wildcards(string(text)), naming{})
}
