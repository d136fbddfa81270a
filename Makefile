# Each target sets itself up first (scripts/setup), which is quick from the second time on.
.DEFAULT_GOAL := help
.PHONY: help setup serve chat test check fix protos

PORT ?=
GRPC_PORT ?=
CONFIG ?=
URL ?= http://127.0.0.1:$(or $(PORT),8000)

help: ## Show this
	@sed -n 's/^\([a-z]*\):[^#]*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## Install into .venv what running, checking and testing need
	@scripts/setup dev

serve: ## Serve a model pair; PORT=8000, GRPC_PORT=8001, CONFIG=pair.yaml
	@scripts/setup
	@exec .venv/bin/allroads up $(if $(CONFIG),--config $(CONFIG)) $(if $(PORT),--port $(PORT)) $(if $(GRPC_PORT),--grpc-port $(GRPC_PORT))

chat: ## Talk to the pair that is served; PORT=8000 or URL=http://host:port
	@scripts/setup
	@exec .venv/bin/allroads chat --url $(URL)

test: ## Run the tests; ARGS="tests/cli -k restart"
	@scripts/setup dev
	@scripts/test $(ARGS)

check: ## Check format, lint, types, and generated code
	@scripts/setup dev
	@scripts/check

fix: ## Mend format and what else a machine can, then check
	@scripts/setup dev
	@scripts/check --fix

protos: ## Generate services/mesh/wire from protos/
	@scripts/setup dev
	@scripts/protos
