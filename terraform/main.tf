# Uploads a release (docs/release.md) to a bucket, and creates the stack from its template.

terraform {
  required_version = ">= 1.5"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "release" {
  description = "Folder of an unpacked release: it holds template.yaml and artifacts/."
  type        = string
}

variable "artifact_bucket" {
  description = "Existing bucket in the region of the stack, for the artifacts."
  type        = string
}

variable "artifact_prefix" {
  description = "Prefix of the artifacts in the bucket; ends in a slash. Give each stack its own."
  type        = string

  validation {
    condition     = can(regex("^([^/]+/)+$", var.artifact_prefix))
    error_message = "artifact_prefix must end in a slash and not begin with one."
  }
}

variable "stack_name" {
  description = "Name of the CloudFormation stack."
  type        = string
  default     = "evenkeel"
}

variable "deployment_role_arn" {
  description = "Role that CloudFormation assumes. If omitted, CloudFormation uses the caller's rights."
  type        = string
  default     = null
}

variable "tags" {
  description = "Tags of the stack and of its resources."
  type        = map(string)
  default     = {}
}

locals {
  template_file = "${var.release}/template.yaml"
  # An update must see another address if the template changes.
  template_key = "${var.artifact_prefix}template-${substr(filesha256(local.template_file), 0, 16)}.yaml"
  # A new id for each release and each change of the parameters: Lambda publishes the versions of a deployment under it.
  deployment_id = substr(sha256(jsonencode([local.template_key, local.parameters])), 0, 10)
  location = {
    ArtifactBucket = var.artifact_bucket
    ArtifactPrefix = "${var.artifact_prefix}artifacts/"
  }
}

data "aws_s3_bucket" "artifacts" {
  bucket = var.artifact_bucket
}

resource "aws_s3_object" "artifact" {
  for_each = fileset("${var.release}/artifacts", "**")

  bucket      = var.artifact_bucket
  key         = "${var.artifact_prefix}artifacts/${each.value}"
  source      = "${var.release}/artifacts/${each.value}"
  source_hash = filesha256("${var.release}/artifacts/${each.value}")

  # The code of the last release stays until the stack has left it: a failed update rolls back to it.
  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_s3_object" "template" {
  bucket      = var.artifact_bucket
  key         = local.template_key
  source      = local.template_file
  source_hash = filesha256(local.template_file)

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_cloudformation_stack" "evenkeel" {
  name         = var.stack_name
  template_url = "https://${data.aws_s3_bucket.artifacts.bucket_regional_domain_name}/${aws_s3_object.template.key}"
  parameters   = merge(local.parameters, local.location, { DeploymentId = local.deployment_id })
  capabilities = ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]
  iam_role_arn = var.deployment_role_arn
  tags         = var.tags

  # New code must be in the bucket before the stack names it.
  depends_on = [aws_s3_object.artifact]
}

output "stack_id" {
  description = "ARN of the stack."
  value       = aws_cloudformation_stack.evenkeel.id
}

output "outputs" {
  description = "Outputs of the stack, by the names in template.yaml: ApiUrl, PageTopicArn, KubernetesRoleArns and others."
  value       = aws_cloudformation_stack.evenkeel.outputs
}
